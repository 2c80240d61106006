//! Embeddings of images for the coarse stage: from a model, or from a thumbnail if there is none.

use std::path::{Path, PathBuf};

use base::{Dim, Error, NamedTensor, Result, Tensor};
use engine::{Engine, LoadRequest, Session};
use engine_onnx::OnnxEngine;
use vision::{Image, Preprocess};

use loadgen::BenchEnv;

/// Path at which `make images-model` puts the model.
const USUAL_MODEL: &str = ".cache/images/models/mobilenet-v2/1/model.onnx";
/// Side in pixels of the thumbnail that replaces a model.
const THUMBNAIL: u32 = 8;

/// Source of embeddings.
pub(super) enum PhotoEmbedder {
    Model {
        session: Box<dyn Session>,
        input: String,
        output: String,
        preprocess: Preprocess,
        path: PathBuf,
    },
    Thumbnail,
}

impl PhotoEmbedder {
    /// Opens the named model, or the default one. Only made-up images need no model.
    pub(super) fn open(
        named: Option<&Path>,
        made_up: bool,
        env: &BenchEnv,
    ) -> Result<PhotoEmbedder> {
        let path = named.unwrap_or(Path::new(USUAL_MODEL));
        if path.is_file() {
            return PhotoEmbedder::model(path, env);
        }
        if made_up && named.is_none() {
            return Ok(PhotoEmbedder::Thumbnail);
        }
        Err(Error::not_found(format!(
            "{}: there is no such model; make it with `make images-model`, or name one with --model",
            path.display()
        )))
    }

    /// Opens a model of embeddings, and reads its input size.
    fn model(path: &Path, env: &BenchEnv) -> Result<PhotoEmbedder> {
        let engine = OnnxEngine::open(&env.onnxruntime)?;
        let session =
            engine.load(&LoadRequest { graph: path.to_owned(), ..LoadRequest::default() })?;
        let signature = session.signature();
        let invalid = |what: &str| Error::invalid(format!("{}: {what}", path.display()));
        let ([input], Some(output)) = (signature.inputs.as_slice(), signature.outputs.first())
        else {
            return Err(invalid("an embedding model has one input and an output"));
        };
        let (width, height) = match input.shape.as_deref().unwrap_or_default() {
            [_, Dim::Fixed(3), Dim::Fixed(height), Dim::Fixed(width)] => {
                (*width as u32, *height as u32)
            }
            _ => {
                return Err(invalid(
                    "its input is not images, channels first: [n, 3, height, width]",
                ));
            }
        };
        let preprocess = Preprocess { width, height, ..Preprocess::default() };
        let input = input.name.clone();
        let output = output.name.clone();
        Ok(PhotoEmbedder::Model { session, input, output, preprocess, path: path.to_owned() })
    }

    /// Returns a description of the source.
    pub(super) fn name(&self) -> String {
        match self {
            PhotoEmbedder::Model { path, .. } => path.display().to_string(),
            PhotoEmbedder::Thumbnail => format!("thumbnails of {THUMBNAIL} x {THUMBNAIL} pixels"),
        }
    }

    /// Returns the embedding of an image.
    pub(super) fn embed(&self, image: &Image) -> Result<Vec<f32>> {
        match self {
            PhotoEmbedder::Model { session, input, output, preprocess, .. } => {
                let mut values = vec![0.0; preprocess.len()];
                preprocess.write(image, &mut values)?;
                let shape = [1, 3, preprocess.height as usize, preprocess.width as usize];
                let tensor = Tensor::from_vec(shape.as_slice(), values)?;
                let outputs = session
                    .run(&[NamedTensor::new(input.as_str(), tensor)], &[output.as_str().into()])?;
                let first =
                    outputs.first().ok_or_else(|| Error::internal("the model gave no output"))?;
                first.tensor.to_vec::<f32>()
            }
            PhotoEmbedder::Thumbnail => {
                let small = image.resized(THUMBNAIL, THUMBNAIL);
                let mean = small.rgb.iter().map(|&value| f32::from(value)).sum::<f32>()
                    / small.rgb.len() as f32;
                Ok(small.rgb.iter().map(|&value| f32::from(value) - mean + 0.01).collect())
            }
        }
    }
}
