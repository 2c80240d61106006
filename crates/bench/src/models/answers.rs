//! Expected answers of models, and the comparison of an answer with them.

use std::sync::atomic::{AtomicU32, Ordering};

use base::{Error, NamedTensor, Result};

use crate::bare::Bare;
use demo::ocr;
use loadgen::connection::RawResponse;
use loadgen::drive::{Judge, Judgement};
use loadgen::wire::{Outputs, read_answer};

/// Answers of the model to each request when it runs alone, and the tolerance of the comparison.
#[derive(Debug)]
pub(crate) struct ExpectedAnswers {
    kind: AnswerKind,
    /// Bits of the largest difference seen. Differences are never negative, so their bits order as
    /// numbers do.
    drift: AtomicU32,
}

#[derive(Debug)]
enum AnswerKind {
    /// Numbers within `tolerance` of the expected ones (relative above 1).
    Numbers { output: String, shapes: Vec<Vec<i64>>, expected: Vec<Vec<f32>>, tolerance: f32 },
    /// Text read from scores. The characters must be the same; their scores may change.
    Text { output: String, lines: Vec<TextLine>, characters: Vec<String> },
}

/// Text of one image.
#[derive(Clone, Debug, PartialEq)]
struct TextLine {
    text: String,
    /// Winning score of each step.
    scores: Vec<f32>,
}

impl TextLine {
    fn read(scores: &[f32], characters: &[String]) -> TextLine {
        let classes = characters.len() + 1;
        TextLine {
            text: ocr::decode(scores, classes, characters),
            scores: scores.chunks_exact(classes).map(|step| ocr::best(step).1).collect(),
        }
    }
}

impl ExpectedAnswers {
    /// Expects the output of `bare` for `requests`, within `tolerance`.
    pub(crate) fn numbers(
        bare: &Bare,
        requests: &[Vec<NamedTensor>],
        tolerance: f32,
    ) -> Result<ExpectedAnswers> {
        let outputs = bare.first_outputs(requests)?;
        let shape =
            |tensor: &base::Tensor| tensor.shape().iter().map(|&size| size as i64).collect();
        Ok(ExpectedAnswers::of(AnswerKind::Numbers {
            output: bare.output_name(),
            shapes: outputs.iter().map(shape).collect(),
            expected: outputs.iter().map(base::Tensor::to_vec::<f32>).collect::<Result<_>>()?,
            tolerance,
        }))
    }

    /// Expects the text that `bare` reads in `requests`.
    pub(crate) fn text(
        bare: &Bare,
        requests: &[Vec<NamedTensor>],
        characters: Vec<String>,
    ) -> Result<ExpectedAnswers> {
        let outputs = bare.first_outputs(requests)?;
        let line =
            |tensor: &base::Tensor| Ok(TextLine::read(&tensor.to_vec::<f32>()?, &characters));
        let lines = outputs.iter().map(line).collect::<Result<_>>()?;
        Ok(ExpectedAnswers::of(AnswerKind::Text { output: bare.output_name(), lines, characters }))
    }

    fn of(kind: AnswerKind) -> ExpectedAnswers {
        ExpectedAnswers { kind, drift: AtomicU32::new(0) }
    }

    /// Returns how many of `words` the model reads exactly, or `None` if it does not read text.
    pub(crate) fn read_exactly(&self, words: &[String]) -> Option<usize> {
        match &self.kind {
            AnswerKind::Text { lines, .. } => {
                Some(lines.iter().zip(words).filter(|(line, words)| line.text == **words).count())
            }
            AnswerKind::Numbers { .. } => None,
        }
    }

    /// Returns the largest difference of a number (for text, of a winning score) from the expected
    /// one since the last call.
    pub(crate) fn take_drift(&self) -> f32 {
        f32::from_bits(self.drift.swap(0, Ordering::Relaxed))
    }

    fn note(&self, got: &[f32], wanted: &[f32]) -> f32 {
        let apart = got
            .iter()
            .zip(wanted)
            .map(|(got, wanted)| (got - wanted).abs() / wanted.abs().max(1.0));
        // Not `max`, which ignores NaN.
        let most =
            apart.fold(0.0, |most: f32, one| if most.is_nan() || one <= most { most } else { one });
        let known = if most.is_nan() { f32::INFINITY } else { most };
        self.drift.fetch_max(known.to_bits(), Ordering::Relaxed);
        known
    }

    /// Returns true if the outputs are the expected answer of request `shot`.
    fn is_right(&self, shot: usize, outputs: &Outputs) -> Result<bool> {
        match &self.kind {
            AnswerKind::Numbers { output, shapes, expected, tolerance } => {
                let (shape, values) = outputs.floats(output)?;
                let same = shape == shapes[shot] && values.len() == expected[shot].len();
                Ok(same && self.note(&values, &expected[shot]) <= *tolerance)
            }
            AnswerKind::Text { output, lines, characters } => {
                let (shape, scores) = outputs.floats(output)?;
                let wanted = &lines[shot];
                let steps = wanted.scores.len();
                if shape != [1, steps as i64, characters.len() as i64 + 1]
                    || scores.len() != steps * (characters.len() + 1)
                {
                    return Err(Error::data_loss(format!("the answer has shape {shape:?}")));
                }
                let line = TextLine::read(&scores, characters);
                self.note(&line.scores, &wanted.scores);
                Ok(line.text == wanted.text)
            }
        }
    }
}

impl Judge for ExpectedAnswers {
    fn judge(&self, shot: usize, answer: &RawResponse) -> (Judgement, u64) {
        let Ok(outputs) = read_answer(answer) else { return (Judgement::Wrong, 0) };
        let right = self.is_right(shot, &outputs).unwrap_or(false);
        (if right { Judgement::Right } else { Judgement::Wrong }, outputs.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outputs(shape: &[i64], values: &[f32]) -> Outputs {
        let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Outputs { version: 1, tensors: vec![("y".into(), shape.to_vec(), raw.into())] }
    }

    #[test]
    fn numbers_must_be_near_and_of_the_same_shape() {
        let answers = ExpectedAnswers::of(AnswerKind::Numbers {
            output: "y".into(),
            shapes: vec![vec![1, 2]],
            expected: vec![vec![0.5, 100.0]],
            tolerance: 1e-3,
        });
        let right =
            |shape: &[i64], values: &[f32]| answers.is_right(0, &outputs(shape, values)).unwrap();
        assert!(right(&[1, 2], &[0.5005, 100.05]));
        assert!((answers.take_drift() - 5e-4).abs() < 1e-5 && answers.take_drift() == 0.0);
        assert!(
            !right(&[1, 2], &[0.5, 100.2])
                && !right(&[2, 1], &[0.5, 100.0])
                && !right(&[1, 1], &[0.5])
        );
        assert!(!right(&[1, 2], &[f32::NAN, 100.0]));
        assert_eq!(answers.take_drift(), f32::INFINITY);
    }

    #[test]
    fn text_must_be_the_same_and_as_long() {
        let characters = vec!["a".to_owned(), "b".to_owned()];
        let alone = [0.1, 0.8, 0.1, 0.9, 0.05, 0.05, 0.2, 0.2, 0.6];
        let lines = vec![TextLine::read(&alone, &characters)];
        assert_eq!(lines[0].text, "ab");
        let answers =
            ExpectedAnswers::of(AnswerKind::Text { output: "y".into(), lines, characters });
        assert_eq!(answers.read_exactly(&["ab".into()]), Some(1));
        let surer = [0.0, 1.0, 0.0, 0.9, 0.05, 0.05, 0.2, 0.2, 0.6];
        let right = |shape: &[i64], values: &[f32]| answers.is_right(0, &outputs(shape, values));
        assert!(right(&[1, 3, 3], &surer).unwrap());
        assert!((answers.take_drift() - 0.2).abs() < 1e-6);
        let other = [0.8, 0.1, 0.1, 0.9, 0.05, 0.05, 0.2, 0.2, 0.6];
        assert!(!right(&[1, 3, 3], &other).unwrap());
        assert!(right(&[1, 2, 3], &alone[..6]).is_err());
    }
}
