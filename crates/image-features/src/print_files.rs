//! Files with several fingerprints: the finger views of a template, and the images of an
//! ANSI/NIST-ITL file.
//!
//! Each print becomes a file of its own, which is added, stored and removed like any file. Only the
//! first print that can be read has the whole file, so its id is that of the file. The prints of
//! a file belong to one person: the person that the request names, or one of the file's own.

use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use matching::template::{self, StatedPrint, TemplateFormat};
use search::points::PointId;
use serde_json::{Map, Value, json};
use vision::Format;

use super::features::{BLOCK, FOUND_AGAIN, MinutiaeSource, check_minutiae, id_of};
use super::template_file::FileFormat;

/// Maximum prints of a file: four impressions of each finger, and more.
pub(crate) const PRINTS_MAX: usize = 64;
/// Key of a payload that names the person.
const PERSON: &str = "person";
/// Key of the payload member with the number of the finger. The numbers 1 to 5 are from the right
/// thumb to the right little finger, and 6 to 10 the same of the left hand.
const FINGER: &str = "finger";
/// Bytes of memory for each byte of a template whose views are read: minutiae, and the fields of
/// views without minutiae.
const VIEWS_MEMORY_FACTOR: u64 = 3;

/// A print of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrintFile {
    /// File of this print. That of the first print that can be read is the whole file.
    pub bytes: Bytes,
    /// Finger, 1 to 10, if the file states one.
    pub finger: Option<u8>,
    /// True if the print shows several fingers.
    pub(crate) is_slap: bool,
}

/// Returns the person that a payload names. Null and an empty text name no person.
pub fn named_person(payload: &Map<String, Value>) -> Option<&Value> {
    payload.get(PERSON).filter(|person| !person.is_null() && person.as_str() != Some(""))
}

/// Returns the finger and the quality of a stored print, from its payload.
pub fn stated_print(payload: &Map<String, Value>) -> StatedPrint {
    let byte = |value: &Value| value.as_u64().and_then(|number| u8::try_from(number).ok());
    let quality = payload.get(BLOCK).and_then(|block| block.get("quality"));
    StatedPrint { finger: payload.get(FINGER).and_then(byte), quality: quality.and_then(byte) }
}

/// A print that cannot be extracted from its file, or has no minutiae.
#[derive(Clone, Debug)]
pub struct RefusedPrint {
    /// Finger, 1 to 10, if the file states one.
    pub finger: Option<u8>,
    /// The reason.
    pub error: Error,
}

/// A print of a file, or the reason why the file does not have it.
pub type SplitPrint = Result<PrintFile, RefusedPrint>;

/// Returns the finger that the file states for a print.
pub(crate) fn finger_of(print: &SplitPrint) -> Option<u8> {
    match print {
        Ok(print) => print.finger,
        Err(refused) => refused.finger,
    }
}

/// Prints of a file.
pub struct FilePrints {
    /// The prints, in the order of the file.
    pub prints: Vec<SplitPrint>,
    /// Person of all prints; `None` if the file has one print.
    person: Option<String>,
}

impl FilePrints {
    /// Returns a file as one print.
    pub fn whole(file: &Bytes) -> FilePrints {
        FilePrints::of_one(file, None)
    }

    fn of_one(file: &Bytes, finger: Option<u8>) -> FilePrints {
        let print = PrintFile { bytes: file.clone(), finger, is_slap: false };
        FilePrints { prints: vec![Ok(print)], person: None }
    }

    /// Splits the file of a fingerprint into its prints. Calls `reserve` with the number of bytes
    /// of each new file. A file that cannot be read is one print: its extraction reports the error.
    ///
    /// # Errors
    /// `InvalidArgument` for more than 64 prints; the errors of `reserve`.
    pub fn split(file: &Bytes, mut reserve: impl FnMut(u64) -> Result<()>) -> Result<FilePrints> {
        let mut reserved = |bytes: Vec<u8>| -> Result<Bytes> {
            reserve(bytes.len() as u64)?;
            Ok(Bytes::from(bytes))
        };
        match FileFormat::sniff(file) {
            Some(FileFormat::Template(_)) => of_template(file, &mut reserved),
            Some(FileFormat::Image(Format::Nist)) => of_nist(file, &mut reserved),
            Some(FileFormat::Image(_)) | None => Ok(FilePrints::whole(file)),
        }
    }

    /// Returns the payload of a print: that of the caller, with the finger and the person that it
    /// does not name.
    pub fn payload(&self, print: &PrintFile, own: &Map<String, Value>) -> Map<String, Value> {
        let mut payload = own.clone();
        if let Some(finger) = print.finger {
            payload.entry(FINGER).or_insert_with(|| finger.into());
        }
        if let Some(person) = self.person(own) {
            payload.insert(PERSON.to_owned(), person);
        }
        payload
    }

    /// Returns the person of the prints if the file has several: that of the caller's payload, or
    /// the id of the file.
    pub(crate) fn person(&self, own: &Map<String, Value>) -> Option<Value> {
        let person = self.person.as_deref()?;
        let named = named_person(own);
        Some(named.cloned().unwrap_or_else(|| person.into()))
    }

    /// Returns true if the file has several prints.
    pub fn are_several(&self) -> bool {
        self.prints.len() > 1
    }

    /// Returns the number of the print that has the whole file.
    pub fn whole_number(&self) -> usize {
        self.prints.iter().position(Result::is_ok).unwrap_or(0)
    }

    /// Returns the numbers of the prints in the order in which they are added. The print that has
    /// the whole file is the last. If the id of a file is in the collection, clients assume that
    /// the file is complete, and do not send it again.
    pub fn write_order(&self) -> Vec<usize> {
        let whole = self.whole_number();
        let mut order: Vec<usize> = (0..self.prints.len()).filter(|at| *at != whole).collect();
        order.push(whole);
        order
    }

    /// Returns true if the error of a print ends the request. This is so for an error of the only
    /// print, or of the server. After an error of one print, the other prints are still added.
    pub fn is_ended_by(&self, error: &Error) -> bool {
        !self.are_several() || !is_of_one_print(error)
    }

    /// Returns the response to the upload of a file, from the results of its prints in the order of
    /// [`FilePrints::write_order`]. For a file with several prints, it has the fields of all
    /// prints. It also has those of the first print that is in the collection. `own` is the payload
    /// of the caller.
    ///
    /// # Errors
    /// The first error if no print is in the collection.
    pub fn answer(
        &self,
        own: &Map<String, Value>,
        mut results: Vec<Result<Value>>,
    ) -> Result<Value> {
        // In the order of the file.
        if let Some(last) = results.pop() {
            results.insert(self.whole_number().min(results.len()), last);
        }
        let first = results.iter().find_map(|result| result.as_ref().ok());
        let Some(mut answer) = first.cloned() else { return Err(none_of(results)) };
        if !self.are_several() {
            return Ok(answer);
        }
        let shown = |(print, result): (&SplitPrint, Result<Value>)| {
            let mut json = result.unwrap_or_else(
                |error| json!({ "id": null, "status": "failed", "error": error.message() }),
            );
            json["finger"] = finger_of(print).into();
            json
        };
        answer["prints"] = self.prints.iter().zip(results).map(shown).collect();
        answer["person"] = self.person(own).unwrap_or_default();
        Ok(answer)
    }

    /// Returns the prints of several fingers of a person, for a query: the first of each finger,
    /// and each print of an unknown finger. Prints of several fingers, and prints that cannot be
    /// extracted, are left out. A file with one print has this print.
    pub fn into_query(self) -> Vec<Bytes> {
        let are_several = self.are_several();
        let mut fingers = Vec::new();
        let is_wanted = |print: &PrintFile| {
            if !are_several {
                return true;
            }
            let is_known = print.finger.is_some_and(|finger| fingers.contains(&finger));
            fingers.extend(print.finger);
            !print.is_slap && !is_known
        };
        let prints: Vec<PrintFile> = self.prints.into_iter().flatten().collect();
        let all = prints.iter().map(|print| print.bytes.clone()).collect();
        let wanted: Vec<Bytes> =
            prints.into_iter().filter(is_wanted).map(|print| print.bytes).collect();
        // A file of slaps alone.
        if wanted.is_empty() { all } else { wanted }
    }
}

/// Returns true if a file may have several prints, by its first bytes.
pub fn may_have_several(file: &[u8]) -> bool {
    match FileFormat::sniff(file) {
        Some(FileFormat::Image(format)) => format == Format::Nist,
        Some(FileFormat::Template(format)) => format != TemplateFormat::SourceAfis,
        None => false,
    }
}

/// Returns the number of bytes of memory that [`FilePrints::split`] needs while it runs, besides
/// the bytes that it reserves.
pub fn split_bytes(file: &[u8]) -> u64 {
    let length = file.len() as u64;
    match FileFormat::sniff(file) {
        Some(FileFormat::Template(_)) => VIEWS_MEMORY_FACTOR * length,
        // The bytes of a new file are reserved after they are copied.
        Some(FileFormat::Image(Format::Nist)) => length,
        Some(FileFormat::Image(_)) | None => 0,
    }
}

/// Returns the number of prints of a fingerprint's file, 1 if the file cannot be read.
pub fn count(file: &[u8]) -> usize {
    let count = match FileFormat::sniff(file) {
        Some(FileFormat::Template(_)) => template::views(file).map_or(1, |views| views.len()),
        Some(FileFormat::Image(Format::Nist)) => {
            vision::nist_images(file).map_or(1, |images| images.len())
        }
        Some(FileFormat::Image(_)) | None => 1,
    };
    count.max(1)
}

/// Returns true for an error that concerns one print of a file only.
pub fn is_of_one_print(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidArgument | ErrorKind::TooLarge)
}

/// Reserves the memory of the file of a print.
type ReserveFile<'a> = &'a mut dyn FnMut(Vec<u8>) -> Result<Bytes>;

/// Splits a template with several finger views. The first view with minutiae keeps the whole file.
/// Each other print becomes a file of its own, for which `reserved` reserves memory.
fn of_template(file: &Bytes, reserved: ReserveFile<'_>) -> Result<FilePrints> {
    let views = template::views(file).unwrap_or_default();
    if views.len() < 2 {
        return Ok(FilePrints::of_one(file, views.first().and_then(|view| view.finger)));
    }
    check_count(views.len())?;
    // A missing finger may have a view without minutiae.
    let first = views.iter().position(|view| !view.graph.vertices.is_empty());
    let Some(first) = first else { return Ok(FilePrints::whole(file)) };
    let mut prints = Vec::with_capacity(views.len());
    for (number, view) in views.iter().enumerate() {
        let finger = view.finger;
        if let Err(error) = check_minutiae(&view.graph, MinutiaeSource::Template, FOUND_AGAIN) {
            prints.push(Err(RefusedPrint { finger, error }));
            continue;
        }
        let is_first = number == first;
        let bytes =
            if is_first { file.clone() } else { reserved(template::one_view(file, view)?)? };
        prints.push(Ok(PrintFile { bytes, finger, is_slap: false }));
    }
    Ok(FilePrints { prints, person: Some(person_of(file)) })
}

/// Splits a NIST file with several images. The first image that can be decoded keeps the whole
/// file. Each other print becomes a file of its own, for which `reserved` reserves memory.
fn of_nist(file: &Bytes, reserved: ReserveFile<'_>) -> Result<FilePrints> {
    let images = vision::nist_images(file).unwrap_or_default();
    let first = images.iter().position(|image| image.check_compression().is_ok());
    let Some(first) = first else { return Ok(FilePrints::whole(file)) };
    if let [image] = &images[..] {
        return Ok(FilePrints::of_one(file, image.finger()));
    }
    check_count(images.len())?;
    let mut prints = Vec::with_capacity(images.len());
    for (number, image) in images.iter().enumerate() {
        let finger = image.finger();
        let bytes = match image.check_compression() {
            Err(error) => {
                prints.push(Err(RefusedPrint { finger, error }));
                continue;
            }
            Ok(()) if number == first => file.clone(),
            Ok(()) => reserved(vision::nist_file_of(file, image)?)?,
        };
        prints.push(Ok(PrintFile { bytes, finger, is_slap: image.is_slap() }));
    }
    Ok(FilePrints { prints, person: Some(person_of(file)) })
}

/// Returns the error if no print of a file is in the collection.
fn none_of(results: Vec<Result<Value>>) -> Error {
    let count = results.len();
    let first = results.into_iter().find_map(Result::err);
    let first = first.unwrap_or_else(|| Error::internal("a file has no prints"));
    if count < 2 {
        return first;
    }
    first.context(format_args!("none of the {count} prints of this file can be added; the first"))
}

fn person_of(file: &[u8]) -> String {
    PointId::Uuid(id_of(file)).to_string()
}

fn check_count(count: usize) -> Result<()> {
    if count <= PRINTS_MAX {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "this file has {count} prints; a file has at most {PRINTS_MAX}: split it"
    )))
}
