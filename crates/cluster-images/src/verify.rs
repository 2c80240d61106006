//! Comparison of two fingerprints: a holder of one of them compares both.

use api_images::{PrintJson, PrintPair, both_named};
use base::{Error, Result};
use http::{HeaderMap, HeaderValue, Method, header};
use search::points::PointId;
use serde::Deserialize;
use transport::Reply;

use super::by_id::{HolderRequest, ask_any_holder, ask_holder, with_query};
use super::call::ImageCall;
use super::reply;
use super::target::ImageTarget;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RootVerifyParams {
    id: Option<String>,
    #[serde(rename = "threshold")]
    _threshold: Option<f32>,
}

/// Compares the file in the body with a stored fingerprint, or both prints of the JSON.
pub(super) async fn verify(mut call: ImageCall) -> Result<Reply> {
    let parameters: RootVerifyParams = call.query.route_parameters()?;
    if call.media() == "application/json" {
        return pair(call, &parameters).await;
    }
    let id = parameters
        .id
        .ok_or_else(|| Error::invalid("id= is missing: name the image to compare the body with"))?;
    let id: PointId = id.parse()?;
    let target = ImageTarget::open(&call.context)?;
    target.check_prints()?;
    let body = call.bytes().await?;
    let _admitted = call.admit()?;
    let context = &call.context;
    if context.params.strong {
        context.state.check_current(&target.record, context.deadline).await?;
    }
    let media = call.head.headers.get(header::CONTENT_TYPE).cloned();
    let headers = media.into_iter().map(|value| (header::CONTENT_TYPE, value)).collect();
    let request = comparison(&call, headers, body);
    let answer = ask_holder(&call.context, &target.record, id, request).await?;
    reply::passed_back(answer, &call.context.state.requests)
}

/// Compares both prints of the JSON.
async fn pair(mut call: ImageCall, parameters: &RootVerifyParams) -> Result<Reply> {
    if parameters.id.is_some() {
        return Err(both_named());
    }
    let body = call.json_bytes().await?;
    let bytes = body.len() as u64;
    let mut pair: PrintPair = call.context.state.requests.parse_json(body).await?;
    let _admitted = call.admit()?;
    call.context.see_newest_if_strong().await?;
    let target = ImageTarget::open(&call.context)?;
    target.check_prints()?;
    let context = &call.context;
    let requests = &call.context.state.requests;
    // The texts of the prints, and the request that is made of them.
    let mut memory = requests.memory.empty();
    memory.cover(2 * bytes)?;
    // No node may have both of the stored prints.
    if let (PrintJson::Stored { id }, PrintJson::Stored { .. }) = (&pair.first, &pair.second) {
        let features = HolderRequest::get(format!("{id}/features"));
        let found = ask_holder(context, &target.record, *id, features).await?;
        if found.status != 200 {
            return reply::passed_back(found, requests);
        }
        pair.first = PrintJson::Record { record: record_of(&found.body)? };
    }
    let body = serde_json::to_vec(&pair)
        .map_err(|error| Error::internal("two prints cannot be written").caused_by(error))?;
    let json = HeaderValue::from_static("application/json");
    let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, json)]);
    let request = comparison(&call, headers, body.into());
    let answer = match (&pair.first, &pair.second) {
        (PrintJson::Stored { id }, _) | (_, PrintJson::Stored { id }) => {
            ask_holder(context, &target.record, *id, request).await?
        }
        _ => ask_any_holder(context, &target.record, request).await?,
    };
    reply::passed_back(answer, requests)
}

/// Returns the request to a holder, with the parameters of the client.
fn comparison(call: &ImageCall, headers: HeaderMap, body: bytes::Bytes) -> HolderRequest {
    let path = with_query("verify".to_owned(), &call.query.own);
    HolderRequest { method: Method::POST, path, headers, body }
}

/// Returns the record of a holder's answer with features, in base64.
fn record_of(body: &[u8]) -> Result<String> {
    #[derive(Deserialize)]
    struct FeaturesRecord {
        record: String,
    }
    let features: FeaturesRecord = serde_json::from_slice(body)
        .map_err(|error| Error::internal("a holder's answer with features").caused_by(error))?;
    Ok(features.record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_is_taken_from_features() {
        let body = br#"{"id":7,"embedding":[0.5],"record":"AQI=","payload":{}}"#;
        assert_eq!(record_of(body).unwrap(), "AQI=");
        assert!(record_of(b"{}").is_err());
    }
}
