//! JSON of a comparison of two fingerprints.

use base::{Error, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use search::points::PointId;
use serde::{Deserialize, Serialize};

use super::persons::print_file;
use super::prints::PrintSource;

/// Both prints of a comparison.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrintPair {
    /// One print.
    pub first: PrintJson,
    /// The print that it is compared with.
    pub second: PrintJson,
}

/// A print of a comparison.
#[derive(Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum PrintJson {
    /// A print of the collection.
    Stored {
        /// Id of the image.
        id: PointId,
    },
    /// An image or a template.
    File {
        /// Bytes of the file in base64.
        file: String,
    },
    /// A print as a point has it.
    Record {
        /// The bytes of the keypoint graph in base64.
        record: String,
    },
}

impl PrintJson {
    /// Decodes the print.
    ///
    /// # Errors
    /// `InvalidArgument` for a text that is not base64.
    pub(crate) fn source(self) -> Result<PrintSource> {
        match self {
            PrintJson::Stored { id } => Ok(PrintSource::Point(id)),
            PrintJson::File { file } => print_file(&file).map(PrintSource::File),
            PrintJson::Record { record } => STANDARD
                .decode(record)
                .map(PrintSource::Record)
                .map_err(|error| Error::invalid("a record is not base64").caused_by(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Result<PrintSource> {
        serde_json::from_str::<PrintJson>(text).unwrap().source()
    }

    #[test]
    fn prints_are_named_or_sent() {
        assert!(matches!(source(r#"{"id": 7}"#), Ok(PrintSource::Point(PointId::Number(7)))));
        assert!(
            matches!(source(r#"{"file": "AQI="}"#), Ok(PrintSource::File(file)) if *file == [1, 2])
        );
        assert!(
            matches!(source(r#"{"record": "AQI="}"#), Ok(PrintSource::Record(bytes)) if bytes == [1, 2])
        );
        let error = source(r#"{"record": "?"}"#).err().unwrap();
        assert!(error.message().contains("not base64"), "{error}");
        for wrong in ["{}", r#"{"id": 7, "file": "AQI="}"#, r#"{"record": 7}"#] {
            assert!(serde_json::from_str::<PrintJson>(wrong).is_err(), "{wrong}");
        }
    }
}
