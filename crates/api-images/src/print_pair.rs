//! JSON of a comparison of two fingerprints.

use std::sync::Arc;

use base::Result;
use search::points::PointId;
use serde::{Deserialize, Serialize};
use transport::ByteBudget;

use super::persons::decoded_print;
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
#[serde(untagged, try_from = "PrintFields")]
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

/// Members of a print in JSON. An untagged enum would hide the faults of its members.
#[derive(Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a print as {\"id\": ID}, {\"file\": BASE64} or {\"record\": BASE64}"
)]
struct PrintFields {
    id: Option<PointId>,
    file: Option<String>,
    record: Option<String>,
}

impl TryFrom<PrintFields> for PrintJson {
    type Error = &'static str;

    fn try_from(fields: PrintFields) -> Result<PrintJson, &'static str> {
        match fields {
            PrintFields { id: Some(id), file: None, record: None } => Ok(PrintJson::Stored { id }),
            PrintFields { id: None, file: Some(file), record: None } => {
                Ok(PrintJson::File { file })
            }
            PrintFields { id: None, file: None, record: Some(record) } => {
                Ok(PrintJson::Record { record })
            }
            _ => Err("a print has one of the members id, file and record"),
        }
    }
}

impl PrintJson {
    /// Decodes the print. A file and a record hold their part of the `budget`.
    ///
    /// # Errors
    /// As [`decoded_print`].
    pub(crate) fn source(self, budget: &Arc<ByteBudget>) -> Result<PrintSource> {
        match self {
            PrintJson::Stored { id } => Ok(PrintSource::Point(id)),
            PrintJson::File { file } => {
                decoded_print("a print", &file, budget).map(PrintSource::File)
            }
            PrintJson::Record { record } => {
                decoded_print("a record", &record, budget).map(PrintSource::Record)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Result<PrintSource> {
        let budget = ByteBudget::new(1 << 20, Arc::default());
        serde_json::from_str::<PrintJson>(text).unwrap().source(&budget)
    }

    #[test]
    fn prints_are_named_or_sent() {
        assert!(matches!(source(r#"{"id": 7}"#), Ok(PrintSource::Point(PointId::Number(7)))));
        assert!(
            matches!(source(r#"{"file": "AQI="}"#), Ok(PrintSource::File(file)) if *file == [1, 2])
        );
        assert!(
            matches!(source(r#"{"record": "AQI="}"#), Ok(PrintSource::Record(it)) if *it == [1, 2])
        );
        let error = source(r#"{"record": "?"}"#).err().unwrap();
        assert!(error.message().contains("not base64"), "{error}");
    }

    #[test]
    fn prints_of_a_pair_hold_memory_of_requests() {
        let budget = ByteBudget::new(4 << 20, Arc::default());
        let text = || "AAAA".repeat(1 << 20);
        for print in [PrintJson::Record { record: text() }, PrintJson::File { file: text() }] {
            let held = print.source(&budget).unwrap();
            assert_eq!(budget.used(), 3 << 20);
            let other = PrintJson::Record { record: text() }.source(&budget).err().unwrap();
            assert_eq!(other.kind(), base::ErrorKind::ResourceExhausted);
            drop(held);
            assert_eq!(budget.used(), 0);
        }
    }

    #[test]
    fn a_wrong_print_is_refused_by_its_fault() {
        for (wrong, fault) in [
            ("{}", "one of the members id, file and record"),
            (r#"{"id": 7, "file": "AQI="}"#, "one of the members id, file and record"),
            (r#"{"record": 7}"#, "expected a string"),
            (r#"{"id": "x"}"#, "is not a point id"),
            (r#"{"image": "AQI="}"#, "unknown field `image`"),
            ("1", "expected a print as"),
        ] {
            let error = serde_json::from_str::<PrintJson>(wrong).err().unwrap().to_string();
            assert!(error.contains(fault), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_print_is_written_as_it_is_read() {
        let written = |text: &str| {
            serde_json::to_string(&serde_json::from_str::<PrintJson>(text).unwrap()).unwrap()
        };
        for text in [r#"{"id":7}"#, r#"{"file":"AQI="}"#, r#"{"record":"AQI="}"#] {
            assert_eq!(written(text), text);
        }
    }
}
