//! What others show of a recogniser.

use super::{Classes, Kind, Recogniser};

impl Recogniser {
    /// The names of its classes, where its section lists them; piano keys and numbers depend on the model.
    pub fn classes(&self) -> &[String] {
        match &self.output.classes {
            Classes::Named(names) => names,
            Classes::Numbered | Classes::Midi(_) => &[],
        }
    }

    /// From which similarity a voice is taken for an enrolled one; `None` for recognisers without embeddings.
    pub fn threshold(&self) -> Option<f32> {
        (self.kind == Kind::Embeddings).then_some(self.embeddings.threshold)
    }
}
