//! Putting pictures into a collection: what is there already is passed over, the original goes
//! before the point.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use search::collection::PointParts;
use search::points::{NewPoint, PointId};
use search::registry::NamedCollection;
use serde_json::{Map, Value, json};

use super::features::{BLOCK, Features};
use super::ingest::Job;
use super::target::Target;

/// How often, and for how long, bulk work waits for memory that sealing will free.
const WRITE_RETRY: Duration = Duration::from_millis(100);
const WRITE_WAIT_MAX: Duration = Duration::from_secs(120);

/// What became of a picture that was put in.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// Whether it was not there before.
    pub(super) added: bool,
    id: [u8; 16],
    /// The service's block of its payload.
    block: Value,
}

impl Outcome {
    pub(super) fn added(features: &Features) -> Outcome {
        let facts = &features.facts;
        let block = json!({
            "name": facts.name, "width": facts.width, "height": facts.height, "keypoints": facts.keypoints,
        });
        Outcome { added: true, id: facts.id, block }
    }

    fn present(id: [u8; 16], payload: &Map<String, Value>) -> Outcome {
        Outcome { added: false, id, block: payload.get(BLOCK).cloned().unwrap_or_default() }
    }

    /// The same picture, said to have been there.
    pub(super) fn again(&self) -> Outcome {
        Outcome { added: false, ..self.clone() }
    }

    pub(super) fn status(&self) -> &'static str {
        if self.added { "added" } else { "present" }
    }

    /// As the answer to one picture has it.
    pub(super) fn to_json(&self) -> Value {
        let of = |key: &str| self.block.get(key).cloned().unwrap_or_default();
        json!({
            "id": PointId::Uuid(self.id), "status": self.status(), "name": of("name"), "width": of("width"),
            "height": of("height"), "keypoints": of("keypoints"),
        })
    }

    /// As a line of many has it, under the name that the caller knows it by.
    pub(super) fn line(&self, name: &str) -> Value {
        json!({ "name": name, "id": PointId::Uuid(self.id), "status": self.status() })
    }
}

/// Which of these pictures are there.
///
/// # Errors
/// For each, those of [`NamedCollection::get`].
pub(super) fn present(named: &NamedCollection, ids: &[[u8; 16]]) -> Vec<Result<Option<Outcome>>> {
    let points: Vec<PointId> = ids.iter().map(|id| PointId::Uuid(*id)).collect();
    let found = named.get_parts(&points, PointParts::PAYLOAD);
    let outcome = |(found, id): (Result<Option<search::points::FetchedPoint>>, &[u8; 16])| {
        found.map(|point| point.map(|point| Outcome::present(*id, &point.payload)))
    };
    found.into_iter().zip(ids).map(outcome).collect()
}

/// A picture on its way into a collection.
pub(super) struct Ready {
    pub(super) features: Features,
    pub(super) embedding: Vec<f32>,
    pub(super) payload: Map<String, Value>,
}

/// Writes a point; acknowledged once this returns.
///
/// # Errors
/// Those of [`NamedCollection::upsert`].
pub(super) fn write(named: &NamedCollection, picture: &Ready) -> Result<()> {
    with_points(std::slice::from_ref(picture), |points| named.upsert(points))
}

fn with_points(pictures: &[Ready], then: impl FnOnce(&[NewPoint<'_>]) -> Result<()>) -> Result<()> {
    let records: Vec<Vec<u8>> = pictures.iter().map(|picture| picture.features.record()).collect();
    let points = pictures.iter().zip(&records).map(|(picture, record)| NewPoint {
        id: PointId::Uuid(picture.features.facts.id),
        embedding: &picture.embedding,
        record,
        payload: &picture.payload,
    });
    then(&points.collect::<Vec<_>>())
}

/// The same for some of the pictures of a bulk job, which waits while there is no memory for more.
/// It waits here and not where the points are kept, so that it holds up no writer and sealing is
/// not hurried for it. Aliases are kept as they are only during each try.
///
/// # Errors
/// Those of [`NamedCollection::try_upsert`], after having waited, and at once those of
/// [`Target::writing`].
pub(super) fn write_patiently(
    job: &Job,
    target: &Target,
    pictures: &Arc<Vec<Ready>>,
    which: Range<usize>,
) -> Result<()> {
    let give_up = Instant::now() + WRITE_WAIT_MAX;
    loop {
        let (registry, name) = (job.app.registry()?, job.wanted.name.clone());
        let (target, pictures, which) = (target.clone(), pictures.clone(), which.clone());
        let tried = job.at_ordinary_priority(move || {
            let writing = target.writing(&registry, &name)?;
            with_points(pictures.get(which).unwrap_or_default(), |points| {
                writing.try_upsert(points)
            })
        });
        match tried {
            Err(error) if may_pass(&error) && Instant::now() < give_up => {
                std::thread::sleep(WRITE_RETRY)
            }
            outcome => return outcome,
        }
    }
}

fn may_pass(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::ResourceExhausted | ErrorKind::Unavailable)
}
