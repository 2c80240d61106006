//! Settings files: of a model, of a recogniser, of keys, and of TensorFlow Serving.

use crate::bounded;

/// Fuzzes the `millpond.toml` of a model's directory. Asserts that errors are one line.
pub fn model_toml(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Err(error) = bounded(data, 0, || lifecycle::fuzzing::model_file(text)) {
        assert!(!error.is_empty() && !error.contains('\n'), "an error of one line: {error:?}");
    }
}

/// Fuzzes the body of a `[recogniser]` section. Asserts that errors name the recogniser.
pub fn recogniser_toml(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match bounded(data, 0, || audio::recogniser::Recogniser::parse("r", text)) {
        Ok(recogniser) => drop(bounded(data, 0, || recogniser.classes())),
        Err(error) => assert!(error.to_string().contains("recogniser \"r\""), "{error}"),
    }
}

/// Fuzzes the file of keys. Asserts that errors have a text.
pub fn key_file(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Err(error) = bounded(data, 0, || transport::access::fuzzing::key_file(text)) {
        assert!(!error.message().is_empty(), "an error says why");
    }
}

/// Fuzzes tokens as a client sends them, signed or not. Asserts that only a signed text is
/// accepted.
pub fn key_token(data: &[u8]) {
    assert!(!bounded(data, 0, || transport::access::fuzzing::token(data)), "it is not signed");
    bounded(data, 0, || transport::access::fuzzing::signed_token(data));
}

/// Fuzzes the configuration files of TensorFlow Serving: each message as text. Asserts that errors
/// name a line.
pub fn tfs_config(data: &[u8]) {
    use protocol::tensorflow::ConfigProto;
    use protocol::tensorflow::serving as pb;
    let Ok(text) = std::str::from_utf8(data) else { return };
    tfs_message::<pb::ModelServerConfig>(data, text);
    tfs_message::<pb::BatchingParameters>(data, text);
    tfs_message::<pb::PlatformConfigMap>(data, text);
    tfs_message::<ConfigProto>(data, text);
}

/// Fuzzes the `config.pbtxt` of a model of Triton. Asserts that errors name a line.
pub fn triton_config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    tfs_message::<protocol::inference::ModelConfig>(data, text);
}

fn tfs_message<M: protocol::tfs::text::TextMessage>(data: &[u8], text: &str) {
    if let Err(error) = bounded(data, 0, || protocol::tfs::text::parse::<M>(text).map(drop)) {
        let named =
            error.kind() == base::ErrorKind::TooLarge || error.message().starts_with("line ");
        assert!(named, "{error}");
    }
}
