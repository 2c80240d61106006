//! Configuration files of TensorFlow Serving and Triton: protobuf messages as text.
//!
//! The messages are parsed by their descriptors, which `cargo xtask codegen` writes. A field that
//! the descriptors lack is an error with its line.

use base::{Error, Result};
use miette::Diagnostic;
use prost::Message;
use prost_reflect::DynamicMessage;

use crate::generated::DESCRIPTORS;
use crate::inference;
use crate::tensorflow::ConfigProto;
use crate::tensorflow::serving::{
    BatchingParameters, ModelServerConfig, MonitoringConfig, PlatformConfigMap, SslConfig,
};

/// Maximum length of a text in bytes. A list of models has about 300 bytes for each model.
pub const TEXT_BYTES_MAX: usize = 16 << 20;
/// Maximum depth of messages inside messages. The parser recurses.
const DEPTH_MAX: usize = 32;

/// A message that a configuration file holds.
pub trait TextMessage: Message + Default {
    /// Name of the message with its package.
    const NAME: &'static str;
}

/// Implements [`TextMessage`] for messages by name.
macro_rules! text_messages {
    ($($message:ty = $name:literal),* $(,)?) => { $(
        impl TextMessage for $message {
            const NAME: &'static str = $name;
        }
    )* };
}
text_messages! {
    BatchingParameters = "tensorflow.serving.BatchingParameters",
    ConfigProto = "tensorflow.ConfigProto",
    ModelServerConfig = "tensorflow.serving.ModelServerConfig",
    MonitoringConfig = "tensorflow.serving.MonitoringConfig",
    PlatformConfigMap = "tensorflow.serving.PlatformConfigMap",
    SslConfig = "tensorflow.serving.SSLConfig",
    inference::ModelConfig = "inference.ModelConfig",
}

/// Parses a message. Skips a byte order mark at the start, as protobuf's parser does.
///
/// # Errors
/// `InvalidArgument` with the line for text that is not such a message, `TooLarge` for more than
/// [`TEXT_BYTES_MAX`].
pub fn parse<M: TextMessage>(text: &str) -> Result<M> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(Error::too_large(format!("the text is larger than {TEXT_BYTES_MAX} bytes")));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    check_depth(text)?;
    let text = &with_colons(text);
    let descriptor = DESCRIPTORS
        .get_message_by_name(M::NAME)
        .ok_or_else(|| Error::internal(format!("no descriptor of {}", M::NAME)))?;
    let message = DynamicMessage::parse_text_format(descriptor, text).map_err(|error| {
        let at = error.labels().and_then(|mut labels| labels.next());
        let line = at.map_or_else(|| text.lines().count(), |label| line(text, label.offset()));
        Error::invalid(format!("line {}: {error}", line.max(1)))
    })?;
    message.transcode_to().map_err(|error| Error::internal(M::NAME).caused_by(error))
}

/// Returns the line of the byte at `offset`, from 1.
fn line(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().get(..offset).unwrap_or(text.as_bytes());
    before.iter().filter(|&&byte| byte == b'\n').count() + 1
}

/// Inserts the colons before lists that the format permits to omit and the parser requires, as in
/// `input [ { name: "x" } ]`.
fn with_colons(text: &str) -> String {
    let bytes = text.as_bytes();
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.+-".contains(byte);
    let mut result = String::with_capacity(text.len());
    let mut at = 0;
    let mut copied = 0;
    let mut after_colon = false;
    // End of the name before this position, if only space lies between.
    let mut name_end = None;
    while let Some(byte) = bytes.get(at) {
        let rest = bytes.get(at..).unwrap_or_default();
        let length = match byte {
            b'#' => rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()),
            b'"' | b'\'' => quoted_length(rest),
            byte if is_word(byte) => rest.iter().take_while(|byte| is_word(byte)).count(),
            _ => 1,
        };
        at += length;
        if byte.is_ascii_whitespace() || *byte == b'#' {
            continue;
        }
        if *byte == b'['
            && let Some(end) = name_end
        {
            result.push_str(text.get(copied..end).unwrap_or_default());
            result.push(':');
            copied = end;
        }
        name_end = (is_word(byte) && !after_colon).then_some(at);
        after_colon = *byte == b':';
    }
    result.push_str(text.get(copied..).unwrap_or_default());
    result
}

/// Returns the length of the quoted text that `bytes` begin with.
fn quoted_length(bytes: &[u8]) -> usize {
    let mut escaped = false;
    let quote = bytes.first();
    let end = bytes.iter().enumerate().skip(1).find(|(_, byte)| match byte {
        _ if escaped => {
            escaped = false;
            false
        }
        b'\\' => {
            escaped = true;
            false
        }
        byte => Some(*byte) == quote || **byte == b'\n',
    });
    end.map_or(bytes.len(), |(at, _)| at + 1)
}

/// Refuses text whose braces are nested too deeply.
fn check_depth(text: &str) -> Result<()> {
    let mut depth = 0usize;
    let mut quote = None;
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match (quote, byte) {
            (Some(_), b'\\') => drop(bytes.next()),
            (Some(open), _) if byte == open || byte == b'\n' => quote = None,
            (Some(_), _) => {}
            (None, b'"' | b'\'') => quote = Some(byte),
            (None, b'#') => drop(bytes.find(|(_, byte)| *byte == b'\n')),
            (None, b'{' | b'<') => depth += 1,
            (None, b'}' | b'>') => depth = depth.saturating_sub(1),
            (None, _) => {}
        }
        if depth > DEPTH_MAX {
            let line = line(text, at);
            return Err(Error::invalid(format!(
                "line {line}: more than {DEPTH_MAX} messages inside each other"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensorflow::serving::SavedModelBundleSourceAdapterConfig;
    use crate::tensorflow::serving::model_server_config::Config;

    fn models(text: &str) -> Vec<crate::tensorflow::serving::ModelConfig> {
        match parse::<ModelServerConfig>(text).unwrap().config {
            Some(Config::ModelConfigList(list)) => list.config,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn refused<M: TextMessage>(text: &str, wanted: &str) {
        let error = parse::<M>(text).map(drop).unwrap_err();
        assert!(error.message().starts_with(wanted), "{error}");
    }

    #[test]
    fn a_file_of_windows_parses() {
        let text = "\u{feff}model_config_list {\r\n  config { name: \"a\" }\r\n}\r\n";
        assert_eq!(models(text)[0].name, "a");
        refused::<ModelServerConfig>("\u{feff}\r\nnone: 1", "line 2: ");
        refused::<ModelServerConfig>("model_config_list { \u{feff} }", "line 1: ");
    }

    #[test]
    fn the_reference_files_parse() {
        let good = r#"
model_config_list: {
  config: {
    name: "half_plus_two",
    base_path: "${TEST_HALF_PLUS_TWO_DIR}",
    model_platform: "tensorflow"
  },
  config: {
    name: "half_plus_three",
    base_path: "${TEST_HALF_PLUS_THREE_DIR}",
    model_platform: "tensorflow"
  }
}
"#;
        let names: Vec<String> = models(good).into_iter().map(|model| model.name).collect();
        assert_eq!(names, ["half_plus_two", "half_plus_three"]);
        let batching = "max_batch_size { value: 128 }\nbatch_timeout_micros { value: 0 }\n\
                        max_enqueued_batches { value: 1000000 }\nnum_batch_threads { value: 8 }\n";
        let batching: BatchingParameters = parse(batching).unwrap();
        assert_eq!(
            (batching.max_batch_size, batching.max_enqueued_batches),
            (Some(128), Some(1_000_000))
        );
        let monitoring =
            "prometheus_config: {\n  enable: true,\n  path: \"/monitoring/prometheus/metrics\"\n}";
        let monitoring: MonitoringConfig = parse(monitoring).unwrap();
        assert!(monitoring.prometheus_config.unwrap().enable);
        refused::<ModelServerConfig>("improperly formatted file", "line 1: ");
    }

    #[test]
    fn a_list_of_thousands_of_models_parses() {
        const MODELS: usize = 5000;
        let config = |number: usize| {
            let path = "directory/".repeat(22);
            format!(
                "config {{ name: 'm{number}' base_path: 's3://bucket/{path}m{number}' \
                 model_platform: 'tensorflow' }}\n"
            )
        };
        let list: String = (0..MODELS).map(config).collect();
        let text = format!("model_config_list {{ {list} }}");
        assert!(text.len() > 1 << 20);
        let names: Vec<String> = models(&text).into_iter().map(|model| model.name).collect();
        assert_eq!((names.len(), names.last().unwrap().as_str()), (MODELS, "m4999"));
    }

    #[test]
    fn configurations_of_triton_parse() {
        let text = "name: \"m\"\nplatform: \"onnxruntime_onnx\"\nmax_batch_size: 8\n\
                    input [ { name: \"x\" data_type: TYPE_FP32 dims: [ 4 ] } ]\n\
                    instance_group [ { count: 2 kind: KIND_GPU gpus: [ 0, 1 ] } ]\n\
                    parameters: { key: \"intra_op_thread_count\" value: { string_value: \"2\" } }\n\
                    optimization { execution_accelerators { gpu_execution_accelerator: [ { name: \"tensorrt\" } ] } }\n\
                    ensemble_scheduling { step [ { model_name: \"a\" input_map { key: \"x\" value: \"y\" } } ] }";
        let model: inference::ModelConfig = parse(text).unwrap();
        assert_eq!(
            (model.max_batch_size, model.instance_group[0].gpus.as_slice()),
            (8, &[0, 1][..])
        );
        assert_eq!(model.parameters["intra_op_thread_count"].string_value, "2");
        refused::<inference::ModelConfig>("name: 'm'\nbatching { }", "line 2: ");
    }

    #[test]
    fn only_lists_after_names_get_a_colon() {
        for (text, wanted) in [
            ("input [ {} ]", "input: [ {} ]"),
            ("a{b[1]}", "a{b:[1]}"),
            ("a: [ 1 ] b # c [\n [x]", "a: [ 1 ] b: # c [\n [x]"),
            ("a: B [x.y/z] {}", "a: B [x.y/z] {}"),
            ("a: 1.5 [x] {}", "a: 1.5 [x] {}"),
            ("a: 'b [' \"c\\\" [\" [x]", "a: 'b [' \"c\\\" [\" [x]"),
            ("é [ 'é", "é [ 'é"),
        ] {
            assert_eq!(with_colons(text), wanted);
        }
    }

    #[test]
    fn all_forms_of_the_text_format() {
        let text = "# a comment\nmodel_config_list <\n config: [{ name: 'a' \"b\"; base_path: '/a' },\n\
                    { name: \"c\" base_path: \"/c\" # here too\n\
                    model_version_policy { specific { versions: [1, 2] versions: 0x3 } }\n\
                    version_labels { key: 'stable' value: 1 }\n\
                    version_labels { key: 'canary', value: 2 } model_type: TENSORFLOW }] >";
        let models = models(text);
        assert_eq!(models[0].name, "ab");
        assert_eq!(models[1].version_labels["canary"], 2);
        assert_eq!(models[1].model_type, 1);
        let policy = format!("{:?}", models[1].model_version_policy);
        assert!(policy.contains("[1, 2, 3]"), "{policy}");
        assert!(parse::<ModelServerConfig>("").unwrap().config.is_none());
    }

    #[test]
    fn platform_configs_hold_any_messages() {
        let text = "platform_configs { key: 'tensorflow' value { source_adapter_config {\n\
            [type.googleapis.com/tensorflow.serving.SavedModelBundleSourceAdapterConfig] {\n\
            legacy_config { batching_parameters { max_batch_size { value: 7 } }\n\
            session_config { intra_op_parallelism_threads: 2 } } } } } }";
        let map: PlatformConfigMap = parse(text).unwrap();
        let any = map.platform_configs["tensorflow"].source_adapter_config.clone().unwrap();
        let inner = SavedModelBundleSourceAdapterConfig::decode(any.value.as_ref()).unwrap();
        let legacy = inner.legacy_config.unwrap();
        assert_eq!(legacy.batching_parameters.unwrap().max_batch_size, Some(7));
        assert_eq!(legacy.session_config.unwrap().intra_op_parallelism_threads, 2);
    }

    #[test]
    fn mistakes_name_their_line() {
        refused::<BatchingParameters>(
            "max_batch_size { value: 1 }\n\nmax_bach_size { value: 2 }",
            "line 3: field 'max_bach_size' not found",
        );
        refused::<BatchingParameters>("max_batch_size {\n value: 'x' }", "line 2: expected ");
        refused::<BatchingParameters>("max_batch_size { value: 1", "line 1: ");
        refused::<ModelServerConfig>("model_config_list {\n config { version_labels", "line 2: ");
        let deep = "model_config_list { ".repeat(40);
        refused::<ModelServerConfig>(&deep, "line 1: more than 32 messages");
        let quoted = format!("model_config_list {{ config {{ name: '{}' }} }}", "{".repeat(99));
        assert_eq!(models(&quoted)[0].name.len(), 99);
        let long = "#".repeat(TEXT_BYTES_MAX + 1);
        assert_eq!(parse::<SslConfig>(&long).unwrap_err().kind(), base::ErrorKind::TooLarge);
    }
}
