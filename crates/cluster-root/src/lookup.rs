//! Points of other collections that a query names by their ids. Their vectors replace the ids,
//! because the shards of a collection have only its own points.

use std::collections::BTreeMap;
use std::sync::Arc;

use api_qdrant::check_using;
use api_qdrant::json::{LookupFrom, VectorInput, VectorQuery};
use base::{Error, Result};
use cluster_node::CollectionRecord;
use search::points::PointId;
use search::registry::CollectionSettings;

use super::collections;
use super::root_query::{QueriedCollection, RootQuery, VectorsById};

/// Points of another collection that queries name.
struct OtherPoints {
    record: Arc<CollectionRecord>,
    settings: CollectionSettings,
    ids: Vec<PointId>,
    /// Vectors of the points, once they were read.
    vectors: VectorsById,
}

/// Replaces points of other collections by their vectors in each query.
///
/// # Errors
/// `PermissionDenied` if the request's key may not use another collection; `NotFound` if there is
/// no such collection or point; `InvalidArgument` if its vector has another name or size; as
/// [`QueriedCollection::point_vectors`]; `Unavailable` with retry advice if a strong read does not
/// see the newest collection in time.
pub(super) async fn resolve(run: &QueriedCollection<'_>, queries: &mut [RootQuery]) -> Result<()> {
    let lookups = queries.iter().filter_map(|query| query.request.lookup_from.as_ref());
    let names: Vec<&str> = lookups.map(|lookup| lookup.collection.as_str()).collect();
    run.context.wait_others(&names).await?;
    // By the id of the collection.
    let mut others: BTreeMap<String, OtherPoints> = BTreeMap::new();
    // For each query, the id of the other collection.
    let mut sources = Vec::with_capacity(queries.len());
    for query in queries.iter_mut() {
        let Some(mut other) = query.take_lookup(run)? else {
            sources.push(None);
            continue;
        };
        let id = other.record.id.clone();
        sources.push(Some(id.clone()));
        let mut ids = std::mem::take(&mut other.ids);
        others.entry(id).or_insert(other).ids.append(&mut ids);
    }
    for other in others.values_mut() {
        let source = QueriedCollection {
            context: run.context,
            record: &other.record,
            settings: &other.settings,
        };
        other.vectors = Box::pin(source.point_vectors(&other.ids)).await?;
    }
    for (query, source) in queries.iter_mut().zip(sources) {
        if let Some(other) = source.and_then(|id| others.get(&id)) {
            query.replace_points(&other.vectors)?;
        }
    }
    Ok(())
}

impl RootQuery {
    /// Removes the name of the collection that has the points of the query. Returns these points if
    /// the collection is not the queried one.
    ///
    /// # Errors
    /// As [`resolve`].
    fn take_lookup(&mut self, run: &QueriedCollection<'_>) -> Result<Option<OtherPoints>> {
        self.members.remove("lookup_from");
        let Some(lookup) = self.request.lookup_from.take() else { return Ok(None) };
        if !self.request.query.as_ref().is_some_and(VectorQuery::has_vector) {
            return Ok(None);
        }
        let other = self.other_points(run, &lookup);
        let other = other.map_err(|error| error.context("lookup_from"))?;
        // Points of the queried collection itself are not hits.
        Ok(Some(other).filter(|other| other.record.id != run.record.id))
    }

    /// Returns the points of the query, which are in another collection.
    fn other_points(
        &self,
        run: &QueriedCollection<'_>,
        lookup: &LookupFrom,
    ) -> Result<OtherPoints> {
        let record = run.context.other_record(&lookup.collection)?;
        let settings = collections::settings(&record)?;
        check_using(&settings, lookup.vector.as_ref().unwrap_or(&self.request.using))?;
        let dims = run.settings.dims;
        if settings.dims != dims {
            return Err(Error::invalid(format!(
                "Vector dimension error: expected dim: {dims}, got {} in the collection \"{}\"",
                settings.dims, record.name
            )));
        }
        Ok(OtherPoints { record, settings, ids: self.ids(), vectors: VectorsById::new() })
    }

    /// Replaces the points of the query by their vectors.
    ///
    /// # Errors
    /// `NotFound` for a point without a vector in `vectors`.
    fn replace_points(&mut self, vectors: &VectorsById) -> Result<()> {
        let Some(text) = self.query_by_vectors(vectors)? else { return Ok(()) };
        self.members.insert("query".to_owned(), text);
        let replace = |input: &mut VectorInput| {
            let vector = match &*input {
                VectorInput::Id(id) => vectors.get(id),
                VectorInput::Vector(_) => None,
            };
            if let Some(vector) = vector {
                *input = VectorInput::Vector(vector.clone());
            }
        };
        match &mut self.request.query {
            Some(VectorQuery::Nearest(target) | VectorQuery::Mmr { target, .. }) => replace(target),
            Some(VectorQuery::Recommend { positive, negative }) => {
                positive.iter_mut().chain(negative).for_each(replace);
            }
            Some(VectorQuery::Examples(examples)) => {
                let pairs = examples.positive.iter_mut().chain(&mut examples.negative);
                examples.target.iter_mut().chain(pairs).for_each(replace);
            }
            _ => {}
        }
        Ok(())
    }
}
