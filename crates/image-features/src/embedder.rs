//! Served models that embed images: how they are found, their inputs and outputs.

use std::sync::Arc;

use base::{DType, Dim, Error, ErrorKind, NamedTensor, Result, Signature, Tensor, TensorSpec};
use engine::Servable;
use lifecycle::Catalog;
use vision::{Fit, Image, Layout, Order, Preprocess};

/// Side of an input whose size is dynamic.
const SIDE_DEFAULT: u32 = 224;
/// Largest side of an input.
const SIDE_MAX: usize = 2048;
/// Maximum images of one run.
const BATCH_MAX: usize = 16;
/// Minimum values of an embedding of a model that is chosen without a name. Fewer values are the
/// classes of a classifier (such as two for upside down), which would make a useless search. The
/// smallest embeddings in use have 64.
const DIMS_MIN: usize = 16;

/// A version of a model that turns images into vectors.
#[derive(Clone)]
pub struct Embedder {
    /// The version, which runs the embedding.
    pub servable: Arc<Servable>,
    input: Arc<str>,
    output: Arc<str>,
    preprocess: Preprocess,
    /// Maximum images of one run.
    pub batch_max: usize,
    /// Number of values of one vector, if the signature fixes them.
    dims: Option<usize>,
}

impl Embedder {
    /// Returns the served model `name`. Without a name, returns the only served model that embeds
    /// images in at least `DIMS_MIN` values. If [`Catalog::hides_names`] is true, errors have the
    /// number of several models, and not their names.
    ///
    /// # Errors
    /// `FailedPrecondition`, with the remedy, if there is no such model or several;
    /// `Unavailable` while it is loading.
    pub fn find(catalog: &Catalog, name: Option<&str>) -> Result<Embedder> {
        if let Some(name) = name {
            let servable = catalog.get(name, None).map_err(|error| match error.kind() {
                ErrorKind::NotFound => Error::precondition(format!(
                    "the embedding model \"{name}\" is not served; serve it, or rebuild the collection with another one"
                )),
                _ => error,
            })?;
            return Embedder::of(servable);
        }
        let names = catalog.names();
        let found =
            names.iter().filter_map(|name| Embedder::of(catalog.get(name, None).ok()?).ok());
        let (found, small): (Vec<Embedder>, Vec<Embedder>) =
            found.partition(|embedder| embedder.dims.is_none_or(|dims| dims >= DIMS_MIN));
        let listed = |several: &[Embedder]| {
            if catalog.hides_names() {
                return several.len().to_string();
            }
            several.iter().map(Embedder::name).collect::<Vec<_>>().join(", ")
        };
        match found.as_slice() {
            [only] => Ok(only.clone()),
            [] if !names.is_empty() && names.iter().any(|name| catalog.ready(name).is_none()) => {
                Err(Error::unavailable(
                    "no model that takes images is ready yet; models are still loading",
                ))
            }
            [] if !small.is_empty() => Err(Error::precondition(format!(
                "no embedding model is served: the models that take images ({}) give fewer than {DIMS_MIN} values each, as classifiers \
                 do; serve one, or if these are embeddings, name the model with model= or --embedding-model",
                listed(&small)
            ))),
            [] => Err(Error::precondition(
                "no served model embeds images: serve one (a float input [n, 3, height, width] and an output [n, d]); in a \
                 checkout, `make images-model` makes one and `millpond serve .cache/images/models` serves it",
            )),
            several => Err(Error::precondition(format!(
                "several models take images ({}); name one with model= or --embedding-model",
                listed(several)
            ))),
        }
    }

    /// Creates the embedder of a servable.
    ///
    /// # Errors
    /// `FailedPrecondition` if the signature of the model does not take images or return vectors.
    fn of(servable: Arc<Servable>) -> Result<Embedder> {
        let found = EmbedderShape::of(servable.signature()).ok_or_else(|| {
            Error::precondition(format!(
                "model \"{}\" takes no images: that needs one float input [n, 3, height, width] or [n, height, width, 3] \
                 and an output [n, d]",
                servable.id.model
            ))
        })?;
        let mut preprocess = found.preprocess;
        settings(&servable, &mut preprocess)?;
        Ok(Embedder {
            input: found.input.name.as_str().into(),
            output: found.output.name.as_str().into(),
            preprocess,
            batch_max: batch_max(&servable, found.batch_max),
            dims: dims(found.output),
            servable: servable.clone(),
        })
    }

    /// Returns the name of the model.
    pub fn name(&self) -> &str {
        &self.servable.id.model
    }

    /// Returns the format of the model's input.
    pub(crate) fn preprocess(&self) -> &Preprocess {
        &self.preprocess
    }

    /// Returns the values of an image as the model's input.
    ///
    /// # Errors
    /// Returns the errors of [`Preprocess::write`].
    pub fn tensor(&self, image: &Image) -> Result<Vec<f32>> {
        let mut values = vec![0.0; self.preprocess.len()];
        self.preprocess.write(image, &mut values)?;
        Ok(values)
    }

    /// Joins the values of several images to the inputs of one run.
    ///
    /// # Errors
    /// Returns the errors of [`Tensor::from_vec`] for values of another number.
    pub fn inputs(&self, images: &[Vec<f32>]) -> Result<Vec<NamedTensor>> {
        let height = self.preprocess.height as usize;
        let width = self.preprocess.width as usize;
        let count = images.len();
        let shape = match self.preprocess.layout {
            Layout::Nchw => [count, 3, height, width],
            Layout::Nhwc => [count, height, width, 3],
        };
        let tensor = Tensor::from_vec(&shape[..], images.concat())?;
        Ok(vec![NamedTensor::new(self.input.clone(), tensor)])
    }

    /// Returns the names of the outputs that a run must return.
    pub fn outputs(&self) -> Vec<Arc<str>> {
        vec![self.output.clone()]
    }

    /// Returns the embeddings of `count` images from the outputs of their run.
    ///
    /// # Errors
    /// `FailedPrecondition` if the outputs are not `count` vectors of finite numbers.
    pub fn embeddings(&self, outputs: &[NamedTensor], count: usize) -> Result<Vec<Vec<f32>>> {
        let odd = |what: &str| Error::precondition(format!("model \"{}\": {what}", self.name()));
        let output = outputs.iter().find(|output| *output.name == *self.output);
        let output = output.ok_or_else(|| odd("it gave no embeddings"))?;
        let values: Vec<f32> = output.tensor.to_vec()?;
        let dims = values.len().checked_div(count).unwrap_or(0);
        if dims == 0 || dims * count != values.len() {
            return Err(odd("its embeddings are not one vector for each image"));
        }
        if !values.iter().all(|value| value.is_finite()) {
            return Err(odd("an embedding has values that are not finite"));
        }
        Ok(values.chunks_exact(dims).map(<[f32]>::to_vec).collect())
    }

    /// Embeds images on the calling thread, for bulk work at idle priority. Fills the run up to an
    /// allowed batch size, as workers do.
    ///
    /// # Errors
    /// Returns the errors of [`schedule::run_alone`], and of [`Embedder::embeddings`].
    pub fn run(&self, images: &[Vec<f32>]) -> Result<Vec<Vec<f32>>> {
        let outputs = schedule::run_alone(&self.servable, &self.inputs(images)?, &self.outputs())?;
        self.embeddings(&outputs, images.len())
    }
}

/// Returns the maximum images of one run: `most`, or the largest allowed batch size if it is less.
fn batch_max(servable: &Servable, most: usize) -> usize {
    servable.schedule().allowed_batch_sizes.last().map_or(most, |&size| most.min(size))
}

/// Returns the values of an output per image, if its shape fixes them.
fn dims(output: &TensorSpec) -> Option<usize> {
    match output.shape.as_deref()?.get(1)? {
        Dim::Fixed(dims) => Some(*dims),
        Dim::Dynamic(_) => None,
    }
}

/// Parts of a signature that make its model an embedder.
struct EmbedderShape<'a> {
    input: &'a TensorSpec,
    output: &'a TensorSpec,
    preprocess: Preprocess,
    batch_max: usize,
}

impl<'a> EmbedderShape<'a> {
    /// Finds the parts, or returns `None` if the model is not an embedder.
    fn of(signature: &'a Signature) -> Option<EmbedderShape<'a>> {
        let mut needed = signature.inputs.iter().filter(|input| !input.optional);
        let (input, None) = (needed.next()?, needed.next()) else { return None };
        let axes = input.shape.as_deref().filter(|_| input.dtype == DType::F32)?;
        let [batch, a, b, c] = axes else { return None };
        let three = |dim: &Dim| *dim == Dim::Fixed(3);
        let (layout, height, width) = match (three(a), three(c)) {
            (true, _) => (Layout::Nchw, b, c),
            (false, true) => (Layout::Nhwc, a, b),
            _ => return None,
        };
        let side = |dim: &Dim| match dim {
            Dim::Fixed(side) => Some(*side as u32).filter(|_| (1..=SIDE_MAX).contains(side)),
            Dim::Dynamic(_) => Some(SIDE_DEFAULT),
        };
        let batch_max = match batch {
            Dim::Fixed(size) => Some(*size).filter(|size| *size == 1)?,
            Dim::Dynamic(_) => BATCH_MAX,
        };
        let vector = |output: &&TensorSpec| {
            output.dtype == DType::F32
                && output.shape.as_deref().is_some_and(|shape| match shape {
                    [_, Dim::Fixed(dims)] => *dims > 1,
                    [_, Dim::Dynamic(_)] => true,
                    [_, _, Dim::Fixed(1), Dim::Fixed(1)] => true,
                    _ => false,
                })
        };
        let mut outputs = signature.outputs.iter().filter(vector);
        let named = outputs.clone().find(|output| output.name.contains("embedding"));
        let output = named.or_else(|| outputs.next())?;
        let preprocess = Preprocess {
            width: side(width)?,
            height: side(height)?,
            layout,
            ..Preprocess::default()
        };
        Some(EmbedderShape { input, output, preprocess, batch_max })
    }
}

/// Reads the preprocessing from the model's metadata: "image.mean" and "image.std" (three numbers
/// for red, green and blue), "image.scale", "image.order" (rgb, bgr), "image.fit" (stretch, crop,
/// pad).
fn settings(servable: &Servable, preprocess: &mut Preprocess) -> Result<()> {
    let facts = servable.metadata();
    let odd = |key: &str, text: &str| {
        Error::precondition(format!(
            "model \"{}\": \"{key}\" is \"{text}\", which is not valid",
            servable.id.model
        ))
    };
    let numbers = |text: &str| -> Option<Vec<f32>> {
        text.split(',').map(|part| part.trim().parse().ok()).collect()
    };
    for (key, text) in facts.iter().filter(|(key, _)| key.starts_with("image.")) {
        let mut read = || -> Option<()> {
            match key.as_str() {
                "image.mean" => preprocess.mean = numbers(text)?.try_into().ok()?,
                "image.std" => preprocess.std = numbers(text)?.try_into().ok()?,
                "image.scale" => preprocess.scale = text.parse().ok()?,
                "image.order" => {
                    preprocess.order = match text.as_str() {
                        "rgb" => Order::Rgb,
                        "bgr" => Order::Bgr,
                        _ => return None,
                    }
                }
                "image.fit" => {
                    preprocess.fit = match text.as_str() {
                        "stretch" => Fit::Stretch,
                        "crop" => Fit::CentreCrop,
                        "pad" => Fit::Pad,
                        _ => return None,
                    }
                }
                _ => {}
            }
            Some(())
        };
        read().ok_or_else(|| odd(key, text))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use base::VersionId;
    use engine::{ScheduleMode, ScheduleOptions, Session};

    use super::*;

    /// Model whose vector of an image is its first two values.
    struct FirstValues {
        signature: Signature,
        metadata: BTreeMap<String, String>,
        /// Images of each run.
        runs: Arc<Mutex<Vec<usize>>>,
    }

    impl Session for FirstValues {
        fn signature(&self) -> &Signature {
            &self.signature
        }

        fn metadata(&self) -> &BTreeMap<String, String> {
            &self.metadata
        }

        fn run(&self, inputs: &[NamedTensor], _: &[Arc<str>]) -> Result<Vec<NamedTensor>> {
            let images = inputs[0].tensor.shape()[0];
            self.runs.lock().unwrap().push(images);
            let values: Vec<f32> = inputs[0].tensor.to_vec()?;
            let vectors: Vec<f32> =
                values.chunks_exact(3).flat_map(|image| [image[0], image[1]]).collect();
            Ok(vec![NamedTensor::new("y", Tensor::from_vec([images, 2].as_slice(), vectors)?)])
        }
    }

    fn spec(name: &str, shape: Vec<Dim>) -> TensorSpec {
        TensorSpec { name: name.into(), dtype: DType::F32, shape: Some(shape), optional: false }
    }

    #[test]
    fn bulk_runs_have_allowed_batch_sizes() {
        let pixel = vec![Dim::Dynamic(None), Dim::Fixed(3), Dim::Fixed(1), Dim::Fixed(1)];
        let signature = Signature {
            inputs: vec![spec("x", pixel)],
            outputs: vec![spec("y", vec![Dim::Dynamic(None), Dim::Fixed(2)])],
        };
        let runs = Arc::<Mutex<Vec<usize>>>::default();
        let session = FirstValues { signature, metadata: BTreeMap::new(), runs: runs.clone() };
        let options = ScheduleOptions {
            mode: ScheduleMode::Async,
            max_batch: 4,
            allowed_batch_sizes: vec![2, 4],
            ..ScheduleOptions::default()
        };
        let id = VersionId { model: "m".into(), version: 1 };
        let servable = Servable::new(id, "test", Box::new(session), options).unwrap();
        let embedder = Embedder::of(Arc::new(servable)).unwrap();
        assert_eq!(embedder.batch_max, 4, "and not 16");
        let images = [vec![1.0, 2.0, 3.0], vec![4.0, 5.0, 6.0], vec![7.0, 8.0, 9.0]];
        assert_eq!(embedder.run(&images).unwrap(), [[1.0, 2.0], [4.0, 5.0], [7.0, 8.0]]);
        assert_eq!(*runs.lock().unwrap(), [4]);
    }
}
