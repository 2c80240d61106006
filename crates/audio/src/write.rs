//! Writes labels as text in common formats, as they arrive.
//!
//! Formats with an escape use it. Subtitles, label tracks and RTTM have none: characters that would
//! break a line or a field become a space or an underscore.

use std::io::Write;
use std::path::Path;

use base::{Error, Result};
use serde_json::{Value, json};

use crate::decode;
use crate::pipeline::{AudioSummary, PipelineEvent};
use crate::{Fault, Label};

/// Maximum faults that a JSON document keeps until its end; more are counted in its summary.
const FAULTS_MAX: usize = 1000;

/// Format of written labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelFormat {
    /// Aligned columns for people. Times are in minutes, seconds and milliseconds.
    Table,
    /// One document with `format`, `file`, `labels`, `faults` and `summary`. Times are in seconds.
    Json,
    /// Comma-separated values by RFC 4180, with a header: file, start, end, label, score.
    Csv,
    /// Subtitles.
    Srt,
    /// SPEAKER lines as NIST defines them. Faults are comments.
    Rttm,
    /// A label track: start, end and label between tabs.
    Audacity,
}

impl LabelFormat {
    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            LabelFormat::Table => "table",
            LabelFormat::Json => "json",
            LabelFormat::Csv => "csv",
            LabelFormat::Srt => "srt",
            LabelFormat::Rttm => "rttm",
            LabelFormat::Audacity => "audacity",
        }
    }
}

/// Writer of the labels of one recording, as they arrive.
pub struct LabelWriter<W: Write> {
    format: LabelFormat,
    out: W,
    file_name: String,
    labels: u64,
    faults: Vec<Value>,
}

impl<W: Write> LabelWriter<W> {
    /// Writes the beginning of the format. `file_name` is the name of the recording in formats that
    /// have such a field.
    ///
    /// # Errors
    /// Returns the errors of `out`.
    pub fn new(format: LabelFormat, out: W, file_name: &str) -> Result<LabelWriter<W>> {
        let file_name = match format {
            LabelFormat::Rttm => {
                let stem = Path::new(file_name).file_stem();
                field(&stem.map_or(file_name.into(), |stem| stem.to_string_lossy()))
            }
            _ => file_name.to_owned(),
        };
        let mut writer = LabelWriter { format, out, file_name, labels: 0, faults: Vec::new() };
        match format {
            LabelFormat::Table => writer.write("     start        end  score  label\n")?,
            LabelFormat::Json => {
                let file = Value::from(writer.file_name.as_str());
                writer.write(&format!("{{\"format\":1,\"file\":{file},\"labels\":["))?;
            }
            LabelFormat::Csv => writer.write("file,start,end,label,score\r\n")?,
            LabelFormat::Srt | LabelFormat::Rttm | LabelFormat::Audacity => {}
        }
        Ok(writer)
    }

    /// Writes a label.
    ///
    /// # Errors
    /// Returns the errors of `out`.
    pub fn label(&mut self, label: &Label) -> Result<()> {
        self.labels += 1;
        let start = label.start;
        let end = label.end;
        let score = label.score;
        let line = match self.format {
            LabelFormat::Table => {
                let start = minutes(start);
                let end = minutes(end);
                format!("{start:>10} {end:>10}  {score:>5.2}  {}\n", escaped(&label.text))
            }
            LabelFormat::Json => {
                let comma = if self.labels > 1 { "," } else { "" };
                format!("{comma}\n{}", label_value(label))
            }
            LabelFormat::Csv => {
                let file = quoted(&self.file_name);
                let text = quoted(&label.text);
                format!("{file},{start:.3},{end:.3},{text},{score:.4}\r\n")
            }
            LabelFormat::Srt => {
                let start = hours(start);
                let end = hours(end);
                format!("{}\n{start} --> {end}\n{}\n\n", self.labels, one_line(&label.text))
            }
            LabelFormat::Rttm => {
                let file = &self.file_name;
                let length = end - start;
                let name = field(&label.text);
                format!(
                    "SPEAKER {file} 1 {start:.3} {length:.3} <NA> <NA> {name} {score:.4} <NA>\n"
                )
            }
            LabelFormat::Audacity => format!("{start:.6}\t{end:.6}\t{}\n", one_line(&label.text)),
        };
        self.write(&line)
    }

    /// Writes a fault: in a table and in RTTM now, in JSON at the end. CSV, SRT and label tracks
    /// omit it.
    ///
    /// # Errors
    /// Returns the errors of `out`.
    pub fn fault(&mut self, fault: &Fault) -> Result<()> {
        match self.format {
            LabelFormat::Table => self.write(&format!(
                "{:>10} {:>10}      !  {}\n",
                minutes(fault.at),
                "",
                escaped(&fault.what)
            )),
            LabelFormat::Rttm => {
                self.write(&format!(";; fault at {:.3}: {}\n", fault.at, one_line(&fault.what)))
            }
            LabelFormat::Json if self.faults.len() < FAULTS_MAX => {
                self.faults.push(json!({"at": seconds(fault.at), "what": fault.what}));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Writes the format's end and returns `out`, flushed.
    ///
    /// # Errors
    /// Returns the errors of `out`.
    pub fn finish(mut self, summary: &AudioSummary) -> Result<W> {
        match self.format {
            LabelFormat::Json => {
                let faults = Value::from(std::mem::take(&mut self.faults));
                let summary = summary_value(summary);
                self.write(&format!("\n],\"faults\":{faults},\"summary\":{summary}}}\n"))?;
            }
            LabelFormat::Table => {
                let length = minutes(summary.seconds);
                let labels = summary.labels;
                let faults = summary.faults;
                let partial = if summary.partial { ", partial" } else { "" };
                self.write(&format!(
                    "{length:>10} of sound: {labels} labels, {faults} faults{partial}\n"
                ))?;
            }
            _ => {}
        }
        self.out.flush().map_err(write_error)?;
        Ok(self.out)
    }

    fn write(&mut self, text: &str) -> Result<()> {
        self.out.write_all(text.as_bytes()).map_err(write_error)
    }
}

fn write_error(error: std::io::Error) -> Error {
    Error::io(Path::new("labels cannot be written"), &error)
}

/// Returns an event as one line of JSON with its line feed; `None` for events without a line (today
/// all have one).
///
/// `{"type":"opened","format":..,"rate":..,"channels":..,"seconds":..}`,
/// `{"type":"label","start":..,"end":.., "text":..,"score":..}` (with `"embedding"` if there is
/// one), `{"type":"fault","at":..,"what":..}` or `{"type":"progress","seconds":..,"total":..}`;
/// times in seconds, unknown ones null.
pub fn ndjson(event: &PipelineEvent) -> Option<String> {
    let (kind, value) = match event {
        PipelineEvent::Opened(format) => ("opened", opened_value(format)),
        PipelineEvent::Label(label) => ("label", label_value(label)),
        PipelineEvent::Fault(fault) => {
            ("fault", json!({"at": seconds(fault.at), "what": fault.what}))
        }
        PipelineEvent::Progress { seconds: done, total } => {
            ("progress", json!({"seconds": seconds(*done), "total": total.map(seconds)}))
        }
    };
    Some(line(kind, value))
}

/// Returns the summary as one line of JSON with its line feed:
/// `{"type":"summary","seconds":..,"labels":..,"faults":.., "partial":..,"windows":..}`.
pub fn ndjson_summary(summary: &AudioSummary) -> String {
    line("summary", summary_value(summary))
}

/// Returns the object `value` with its type in front.
fn line(kind: &str, value: Value) -> String {
    let object = value.to_string();
    format!("{{\"type\":\"{kind}\",{}\n", object.strip_prefix('{').unwrap_or("}"))
}

fn opened_value(format: &decode::AudioFormat) -> Value {
    json!({
        "format": format.container_and_codec,
        "rate": format.rate,
        "channels": format.channels,
        "seconds": format.seconds.map(seconds),
    })
}

fn label_value(label: &Label) -> Value {
    let mut value = json!({
        "start": seconds(label.start),
        "end": seconds(label.end),
        "text": label.text,
        "score": shortest(label.score),
    });
    if let (Some(object), Some(embedding)) = (value.as_object_mut(), &label.embedding) {
        object.insert("embedding".into(), embedding.iter().copied().map(shortest).collect());
    }
    value
}

fn summary_value(summary: &AudioSummary) -> Value {
    json!({
        "seconds": seconds(summary.seconds),
        "labels": summary.labels,
        "faults": summary.faults,
        "partial": summary.partial,
        "windows": summary.windows,
    })
}

/// Rounds seconds to the microsecond, which is enough for sound.
fn seconds(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

/// Returns a float32 as the float64 that prints the same digits.
fn shortest(value: f32) -> Value {
    value.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

/// Returns "MM:SS.mmm"; minutes may exceed 99.
fn minutes(seconds: f64) -> String {
    let millis = millis(seconds);
    format!("{:02}:{:02}.{:03}", millis / 60_000, millis / 1000 % 60, millis % 1000)
}

/// Returns "HH:MM:SS,mmm", the form of subtitles.
fn hours(seconds: f64) -> String {
    let millis = millis(seconds);
    let minutes = millis / 60_000;
    format!(
        "{:02}:{:02}:{:02},{:03}",
        minutes / 60,
        minutes % 60,
        millis / 1000 % 60,
        millis % 1000
    )
}

fn millis(seconds: f64) -> u64 {
    (seconds * 1000.0).round() as u64
}

/// Returns one line with control characters and backslashes escaped.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\\' => out.push_str("\\\\"),
            letter if letter.is_control() => out.extend(letter.escape_default()),
            letter => out.push(letter),
        }
    }
    out
}

/// Returns a field of RFC 4180.
fn quoted(text: &str) -> String {
    if text.contains(['"', ',', '\r', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// Replaces control characters by spaces.
fn one_line(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

/// Returns `text` with `_` in place of each space and control character, for a field that spaces
/// delimit. An empty text becomes `<NA>`.
fn field(text: &str) -> String {
    let blank = |letter: char| letter.is_whitespace() || letter.is_control();
    if text.is_empty() {
        "<NA>".to_owned()
    } else {
        text.chars().map(|letter| if blank(letter) { '_' } else { letter }).collect()
    }
}
