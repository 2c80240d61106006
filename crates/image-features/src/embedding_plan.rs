//! Plan for the embeddings of images: the kind of the collection, and the model, if there is one.

use super::embedder::Embedder;
use super::settings::{ImageKind, ImageSettings, WantedImages, default_model, has_embeddings};
use super::template_file::is_template;

/// Kind and model of the images of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddingPlan {
    /// Subject of the images.
    pub kind: ImageKind,
    /// Name of the model. `None` for photographs without a named model: the server's default.
    pub model: Option<String>,
}

impl EmbeddingPlan {
    /// Returns the plan for a collection. `own` has the settings of an existing collection. For a
    /// new one, `wanted` decides. Fingerprints without a named model get no embeddings.
    pub fn of(own: Option<&ImageSettings>, wanted: &WantedImages) -> EmbeddingPlan {
        let kind = own.map(|own| own.kind).or(wanted.kind).unwrap_or(ImageKind::Photo);
        let model = own.map(|own| &own.model).or(wanted.model.as_ref()).cloned();
        EmbeddingPlan { kind, model: model.or_else(|| default_model(kind)) }
    }

    /// Returns true if the collection has embeddings of a model.
    pub fn has_embeddings(&self) -> bool {
        self.model.as_deref().is_none_or(|model| has_embeddings(self.kind, model))
    }

    /// Returns true if a model embeds the file. Models embed pixels, and a template has none.
    pub fn embeds(&self, file: &[u8]) -> bool {
        self.has_embeddings() && !is_template(self.kind, file)
    }

    /// Returns the settings of the collection. They have the name of `embedder`, if it is known. A
    /// plan does not name the server's default.
    pub fn settings(&self, embedder: Option<&Embedder>) -> ImageSettings {
        let named = || self.model.clone().unwrap_or_default();
        let model = embedder.map_or_else(named, |embedder| embedder.name().to_owned());
        ImageSettings { kind: self.kind, model }
    }
}

#[cfg(test)]
mod tests {
    use matching::template::{self, TemplateFormat};

    use super::*;

    fn plan(kind: Option<ImageKind>, model: Option<&str>) -> EmbeddingPlan {
        EmbeddingPlan::of(None, &WantedImages { kind, model: model.map(str::to_owned) })
    }

    #[test]
    fn fingerprints_are_embedded_only_by_a_named_model() {
        let finger = Some(ImageKind::Fingerprint);
        assert!(plan(None, None).has_embeddings());
        assert!(plan(Some(ImageKind::Photo), Some("none")).has_embeddings());
        assert!(plan(finger, Some("m")).has_embeddings());
        for model in [None, Some("none")] {
            let plan = plan(finger, model);
            assert!(!plan.has_embeddings() && !plan.embeds(b"pixels"));
            let settings = plan.settings(None);
            assert_eq!(settings.model, "none");
            assert!(!settings.has_embeddings() && settings.check_embeddings("c").is_err());
        }
    }

    #[test]
    fn a_template_is_not_embedded() {
        let graph = matching::synthetic::fingerprint(1);
        let template = template::write(&graph, TemplateFormat::Iso2005).unwrap();
        let plan = plan(Some(ImageKind::Fingerprint), Some("m"));
        assert!(plan.embeds(b"pixels") && !plan.embeds(&template));
        let settings = plan.settings(None);
        assert!(settings.new_dims(&[]).unwrap_err().message().contains("model \"m\""));
        assert_eq!(settings.new_dims(&[0.5, 1.0]), Ok(2));
    }

    #[test]
    fn an_existing_collection_decides() {
        let own = ImageSettings { kind: ImageKind::Fingerprint, model: "m".to_owned() };
        let found = EmbeddingPlan::of(Some(&own), &WantedImages::default());
        assert_eq!(found, plan(Some(ImageKind::Fingerprint), Some("m")));
    }
}
