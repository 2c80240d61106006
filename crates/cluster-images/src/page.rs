//! Pages of images, and ids that a collection does not have.

use api_images::page_entry;
use base::{Error, Result};
use cluster_root::ReadCoverage;
use cluster_root::reads::{
    self, CountedPoints, ShardAnswers, ShardResults, answers, of_all, result_bytes,
};
use cluster_root::split::raw;
use search::points::PointId;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use transport::Reply;

use super::call::{ImageCall, NoRouteParams};
use super::points::{LookupConsistency, find_ids};
use super::reply;
use super::search::parsed_filter;
use super::target::ImageTarget;

/// Default number of images on a page.
const PAGE_DEFAULT: usize = 50;
/// Maximum images of one page.
const PAGE_MAX: usize = 1000;
/// Maximum ids of one request.
const IDS_MAX: usize = 1000;

/// Parameters of a page.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RootPageParams {
    limit: Option<usize>,
    offset: Option<String>,
    filter: Option<String>,
}

/// Returns a page of a collection's images in the order of their ids, and the number of images that
/// the filter allows.
pub(super) async fn page(call: ImageCall) -> Result<Reply> {
    let parameters: RootPageParams = call.query.route_parameters()?;
    let offset = parameters.offset.as_deref().map(str::parse::<PointId>).transpose()?;
    let limit = parameters.limit.unwrap_or(PAGE_DEFAULT);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Error::invalid(format!("limit is 1 to {PAGE_MAX}")));
    }
    let filter = parameters.filter.as_deref().map(parsed_filter).transpose()?;
    let _admitted = call.admit()?;
    let context = &call.context;
    context.see_newest_if_strong().await?;
    let record = ImageTarget::open(context)?.record;
    let count = json!({ "filter": filter, "exact": true });
    let scroll = json!({
        "filter": filter, "limit": limit, "offset": offset, "with_payload": true, "with_vector": false,
    });
    let count = of_all(context, &record, "points/count", raw(&count)?);
    let scroll = of_all(context, &record, "points/scroll", raw(&scroll)?);
    let (counted, scrolled) = tokio::join!(answers(context, &count), answers(context, &scroll));
    let counted = counted?;
    let scrolled = scrolled?;
    let bytes = result_bytes(&scrolled.results);
    let merge = move || MergedPage::of(&counted, scrolled, limit);
    let page = context.compute(bytes, merge).await?;
    reply::reserved(page.text, page.scrolled.reservation, &context.state.requests)
}

/// The text of a page, and the answers it was made from.
struct MergedPage {
    text: Vec<u8>,
    scrolled: ShardAnswers,
}

impl MergedPage {
    fn of(counted: &ShardAnswers, scrolled: ShardAnswers, limit: usize) -> Result<MergedPage> {
        let points = reads::sum(ShardResults { results: &texts(counted), incomplete: false })?;
        let results = ShardResults { results: &texts(&scrolled), incomplete: false };
        let merged = reads::scroll(results, limit)?;
        let coverage = smaller(counted.coverage, scrolled.coverage);
        let text = page_text(&merged, points, coverage)?;
        Ok(MergedPage { text, scrolled })
    }
}

fn texts(answers: &ShardAnswers) -> Vec<&RawValue> {
    answers.results.values().map(|result| &**result).collect()
}

/// Returns the coverage of an answer that two reads of all shards make.
fn smaller(one: ReadCoverage, other: ReadCoverage) -> ReadCoverage {
    if one.shards < other.shards { one } else { other }
}

/// Turns a page of points into the text of a page of images. Parses one point at a time, because
/// the trees of all payloads would take several times the memory of their text.
fn page_text(merged: &[u8], counted: CountedPoints, coverage: ReadCoverage) -> Result<Vec<u8>> {
    #[derive(Deserialize)]
    struct ScrolledText<'a> {
        #[serde(borrow)]
        points: Vec<&'a RawValue>,
        next_page_offset: Option<PointId>,
        #[serde(default)]
        partial: bool,
    }
    #[derive(Deserialize)]
    struct ScrolledPoint {
        id: PointId,
        #[serde(default)]
        payload: Option<Map<String, Value>>,
    }
    let malformed = |error| Error::internal("a page of points").caused_by(error);
    let page: ScrolledText<'_> = serde_json::from_slice(merged).map_err(malformed)?;
    let mut text = b"{\"images\":[".to_vec();
    for (at, point) in page.points.iter().enumerate() {
        let point: ScrolledPoint = serde_json::from_str(point.get()).map_err(malformed)?;
        if at > 0 {
            text.push(b',');
        }
        let entry = page_entry(&point.id, point.payload.unwrap_or_default());
        text.extend_from_slice(entry.to_string().as_bytes());
    }
    let partial = page.partial || counted.partial;
    let tail = json!({
        "next": page.next_page_offset, "count": counted.count, "partial": partial,
    });
    let tail = reply::with_coverage(tail, coverage).to_string();
    text.extend_from_slice(b"],");
    // The tail without its opening brace.
    text.extend_from_slice(tail.as_bytes().get(1..).unwrap_or_default());
    Ok(text)
}

/// Returns the ids that the collection does not have, with a strong read. Another read could reach
/// a holder that lags, which still has an image whose removal was acknowledged. A shard that does
/// not answer is an error. In both cases a client would take images for stored ones, and not send
/// them. For the same reason, another root may not have replaced the collection.
pub(super) async fn missing(mut call: ImageCall) -> Result<Reply> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct WantedIds {
        ids: Vec<Value>,
    }
    call.query.route_parameters::<NoRouteParams>()?;
    let ids = call.json::<WantedIds>().await?.ids;
    if ids.len() > IDS_MAX {
        return Err(Error::invalid(format!("at most {IDS_MAX} ids at a time")));
    }
    let ids: Vec<PointId> = serde_json::from_value(ids.into())
        .map_err(|error| Error::invalid("ids").caused_by(error))?;
    let _admitted = call.admit()?;
    let context = &call.context;
    context.state.see_newest(&context.collection, context.deadline).await?;
    let missing = match ImageTarget::existing(&call.context, &Default::default())? {
        // A collection that does not exist has no image.
        None => ids,
        Some(_) if ids.is_empty() => ids,
        Some(target) => {
            let consistency = LookupConsistency::Strong;
            let found = find_ids(&call.context, &target.record, &ids, consistency).await?;
            found.check_whole()?;
            ids.into_iter().filter(|id| !found.found.contains(id)).collect()
        }
    };
    Ok(Reply::json(json!({ "missing": missing }).to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_images_and_their_coverage() {
        let block = json!({"name": "a.png", "width": 3, "height": 4, "original": "x"});
        let points = json!([
            {"id": 1, "payload": {"image": block, "shop": 7}},
            {"id": 2, "payload": null},
        ]);
        let merged = json!({"points": points, "next_page_offset": 9}).to_string();
        let page = |partial, coverage| -> Value {
            let counted = CountedPoints { count: 30, partial };
            let text = page_text(merged.as_bytes(), counted, coverage).unwrap();
            serde_json::from_slice(&text).unwrap()
        };
        let whole = page(false, ReadCoverage { shards: 4, of: 4 });
        assert_eq!((&whole["next"], &whole["count"]), (&json!(9), &json!(30)));
        assert_eq!((&whole["partial"], &whole["coverage"]), (&json!(false), &Value::Null));
        let first = &whole["images"][0];
        assert_eq!((&first["name"], &first["payload"]), (&json!("a.png"), &json!({"shop": 7})));
        assert_eq!(whole["images"][1]["id"], 2);
        let part = page(false, ReadCoverage { shards: 3, of: 4 });
        let coverage = json!({"shards": 3, "of": 4});
        assert_eq!((&part["partial"], &part["coverage"]), (&json!(true), &coverage));
        assert_eq!(page(true, ReadCoverage { shards: 4, of: 4 })["partial"], true);
    }
}
