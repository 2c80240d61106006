//! The calls by their paths: how each becomes a request, and its response a message.

use base::{Error, Result};
use bytes::Bytes;
use protocol::{Message, unreadable};

use crate::rest::{RestRequest, RestResponse};
use crate::{aliases, changes, collections, info, queries, results, snapshots, upsert};

/// Bytes of JSON text for each byte of a message. A 32-bit float takes up to 24 digits as a 64-bit
/// one, and a control character six.
const JSON_GROWTH: u64 = 6;
/// Bytes of JSON text for each byte of a message whose elements are written one by one. The text
/// grows by doubling, so the old and the new text exist for a moment.
const STREAMED_JSON_GROWTH: u64 = 2 * JSON_GROWTH;

/// Bytes of JSON values for each byte of a list of 32-bit numbers in a large message.
const VALUE_GROWTH: u64 = 8;

/// Start of the paths of all services of the interface.
const SERVICES: &str = "/qdrant.";

/// Paths of all calls that this server has.
pub const PATHS: [&str; 43] = [
    "/qdrant.Points/Upsert",
    "/qdrant.Points/Delete",
    "/qdrant.Points/Get",
    "/qdrant.Points/UpdateVectors",
    "/qdrant.Points/DeleteVectors",
    "/qdrant.Points/SetPayload",
    "/qdrant.Points/OverwritePayload",
    "/qdrant.Points/DeletePayload",
    "/qdrant.Points/ClearPayload",
    "/qdrant.Points/CreateFieldIndex",
    "/qdrant.Points/DeleteFieldIndex",
    "/qdrant.Points/UpdateBatch",
    "/qdrant.Points/Scroll",
    "/qdrant.Points/Count",
    "/qdrant.Points/Facet",
    "/qdrant.Points/Query",
    "/qdrant.Points/QueryBatch",
    "/qdrant.Points/QueryGroups",
    "/qdrant.Points/SearchMatrixPairs",
    "/qdrant.Points/SearchMatrixOffsets",
    "/qdrant.Points/Search",
    "/qdrant.Points/SearchBatch",
    "/qdrant.Points/SearchGroups",
    "/qdrant.Points/Recommend",
    "/qdrant.Points/RecommendBatch",
    "/qdrant.Points/RecommendGroups",
    "/qdrant.Points/Discover",
    "/qdrant.Points/DiscoverBatch",
    "/qdrant.Collections/Get",
    "/qdrant.Collections/List",
    "/qdrant.Collections/Create",
    "/qdrant.Collections/Update",
    "/qdrant.Collections/Delete",
    "/qdrant.Collections/CollectionExists",
    "/qdrant.Collections/UpdateAliases",
    "/qdrant.Collections/ListAliases",
    "/qdrant.Collections/ListCollectionAliases",
    "/qdrant.Snapshots/Create",
    "/qdrant.Snapshots/List",
    "/qdrant.Snapshots/Delete",
    "/qdrant.Snapshots/CreateFull",
    "/qdrant.Snapshots/ListFull",
    "/qdrant.Snapshots/DeleteFull",
];

/// Returns true if `path` is one of the services of Qdrant's interface, with any method.
pub fn is_call(path: &str) -> bool {
    path.starts_with(SERVICES)
}

/// A message in place of a response.
#[derive(Debug, PartialEq)]
pub struct ResponseMessage {
    /// Bytes of the encoded message.
    pub bytes: Vec<u8>,
    /// True if damage or missing shards may have left points out.
    pub partial: bool,
}

/// A call that this server has.
#[derive(Clone, Copy)]
pub struct QdrantCall {
    /// True if the message may be as large as any request. Small messages have their own limit.
    pub large: bool,
    /// Name of the call's message.
    message: &'static str,
    /// Number of the field whose elements become JSON one by one, if the call has one.
    streamed: Option<u32>,
    request: fn(Bytes) -> Result<RestRequest>,
    response: fn(&RestResponse<'_>) -> Result<Vec<u8>>,
}

macro_rules! call {
    ($message:ident, $request:path, $response:path) => {
        QdrantCall {
            large: false,
            message: stringify!($message),
            streamed: None,
            request: |message| {
                let read = protocol::qdrant::$message::decode(message);
                $request(read.map_err(unreadable)?)
            },
            response: |response| Ok($response(response)?.encode_to_vec()),
        }
    };
}

/// A call whose message has a long list, the field with the number `$list`.
macro_rules! streamed_call {
    ($message:ident, $list:expr, $request:path, $response:path) => {
        QdrantCall {
            large: true,
            message: stringify!($message),
            streamed: Some($list),
            request: $request,
            response: |response| Ok($response(response)?.encode_to_vec()),
        }
    };
}

impl QdrantCall {
    /// Returns the call at `path`.
    ///
    /// # Errors
    /// `Unimplemented` for a method that this server does not have.
    pub fn of(path: &str) -> Result<QdrantCall> {
        let known = match path.strip_prefix(SERVICES).and_then(|rest| rest.split_once('/')) {
            Some(("Points", method)) => of_points(method).or_else(|| of_old_points(method)),
            Some(("Collections", method)) => of_collections(method),
            Some(("Snapshots", method)) => of_snapshots(method),
            _ => None,
        };
        let missing = || {
            let method = path.trim_start_matches('/');
            Error::unimplemented(format!(
                "{method} is not part of what this server has of Qdrant's interface"
            ))
        };
        known.ok_or_else(missing)
    }

    /// Returns the same call for messages that may be as large as any request.
    fn with_large_messages(self) -> QdrantCall {
        QdrantCall { large: true, ..self }
    }

    /// Returns an upper bound of the bytes of memory that [`QdrantCall::request`] allocates.
    ///
    /// # Errors
    /// `InvalidArgument` for bytes that are not a message.
    pub fn bytes_max(&self, message: &[u8]) -> Result<u64> {
        let length = message.len() as u64;
        Ok(match self.streamed {
            None => {
                let decoded = protocol::weigh_described(self.message, message)?;
                let growth = JSON_GROWTH + if self.large { VALUE_GROWTH } else { 0 };
                decoded.saturating_add(growth * length)
            }
            Some(list) => {
                let largest = protocol::weigh_element_wise(self.message, list, message)?;
                largest.saturating_add(STREAMED_JSON_GROWTH * length)
            }
        })
    }

    /// Returns the request for a message.
    ///
    /// # Errors
    /// `InvalidArgument` for bytes that are not the call's message, and for values that the REST
    /// interface cannot express.
    pub fn request(&self, message: Bytes) -> Result<RestRequest> {
        let request = (self.request)(message)?;
        let path = request.path.split('?').next().unwrap_or_default();
        // The first segment is the empty text before the slash.
        if path.split('/').skip(1).any(str::is_empty) {
            return Err(Error::invalid(
                "a name in the message is empty, for example collection_name",
            ));
        }
        Ok(request)
    }

    /// Returns the message for a successful response.
    ///
    /// # Errors
    /// `Internal` for JSON that is not such a response.
    pub fn response(&self, response: RestResponse<'_>) -> Result<ResponseMessage> {
        Ok(ResponseMessage { bytes: (self.response)(&response)?, partial: response.is_partial() })
    }
}

/// Returns the call of a method of the service Points.
fn of_points(method: &str) -> Option<QdrantCall> {
    Some(match method {
        "Upsert" => {
            streamed_call!(UpsertPoints, upsert::POINTS_FIELD, upsert::request, results::updated)
        }
        "Delete" => call!(DeletePoints, changes::delete, results::updated).with_large_messages(),
        "Get" => call!(GetPoints, queries::get, results::fetched),
        "UpdateVectors" => {
            const LIST: u32 = changes::VECTORS_FIELD;
            streamed_call!(UpdatePointVectors, LIST, changes::update_vectors, results::updated)
        }
        "DeleteVectors" => call!(DeletePointVectors, changes::delete_vectors, results::updated),
        "SetPayload" => {
            call!(SetPayloadPoints, changes::set_payload, results::updated).with_large_messages()
        }
        "OverwritePayload" => call!(SetPayloadPoints, changes::overwrite_payload, results::updated)
            .with_large_messages(),
        "DeletePayload" => call!(DeletePayloadPoints, changes::delete_payload, results::updated)
            .with_large_messages(),
        "ClearPayload" => call!(ClearPayloadPoints, changes::clear_payload, results::updated)
            .with_large_messages(),
        "CreateFieldIndex" => {
            call!(CreateFieldIndexCollection, changes::create_index, results::updated)
        }
        "DeleteFieldIndex" => {
            call!(DeleteFieldIndexCollection, changes::delete_index, results::updated)
        }
        // Its JSON can have nine times the message's length, because four bytes are an operation.
        // So all operations count, and not only the largest.
        "UpdateBatch" => QdrantCall {
            large: true,
            message: "UpdateBatchPoints",
            streamed: None,
            request: changes::batch,
            response: |response| Ok(results::updates(response)?.encode_to_vec()),
        },
        "Scroll" => call!(ScrollPoints, queries::scroll, results::scrolled),
        "Count" => call!(CountPoints, queries::count, results::counted),
        "Facet" => call!(FacetCounts, queries::facet, results::faceted),
        "Query" => call!(QueryPoints, queries::query_points, results::queried),
        "QueryBatch" => call!(QueryBatchPoints, queries::query_batch, results::queried_batch)
            .with_large_messages(),
        "QueryGroups" => call!(QueryPointGroups, queries::query_groups, results::grouped),
        "SearchMatrixPairs" => {
            call!(SearchMatrixPoints, queries::matrix_pairs, results::matrix_pairs)
        }
        "SearchMatrixOffsets" => {
            call!(SearchMatrixPoints, queries::matrix_offsets, results::matrix_offsets)
        }
        _ => return None,
    })
}

/// Returns the calls that came before `Query`.
fn of_old_points(method: &str) -> Option<QdrantCall> {
    Some(match method {
        "Search" => call!(SearchPoints, queries::search, results::searched),
        "SearchBatch" => call!(SearchBatchPoints, queries::search_batch, results::searched_batch)
            .with_large_messages(),
        "SearchGroups" => {
            call!(SearchPointGroups, queries::search_groups, results::searched_groups)
        }
        "Recommend" => call!(RecommendPoints, queries::recommend, results::recommended),
        "RecommendBatch" => {
            call!(RecommendBatchPoints, queries::recommend_batch, results::recommended_batch)
                .with_large_messages()
        }
        "RecommendGroups" => {
            call!(RecommendPointGroups, queries::recommend_groups, results::recommended_groups)
        }
        "Discover" => call!(DiscoverPoints, queries::discover, results::discovered),
        "DiscoverBatch" => {
            call!(DiscoverBatchPoints, queries::discover_batch, results::discovered_batch)
                .with_large_messages()
        }
        _ => return None,
    })
}

/// Returns the call of a method of the service `Collections`, or `None` if it is unknown.
fn of_collections(method: &str) -> Option<QdrantCall> {
    Some(match method {
        "Get" => call!(GetCollectionInfoRequest, collections::get, info::described),
        "List" => call!(ListCollectionsRequest, collections::list, info::listed),
        "Create" => call!(CreateCollection, collections::create, info::changed),
        "Update" => call!(UpdateCollection, collections::update, info::changed),
        "Delete" => call!(DeleteCollection, collections::delete, info::changed),
        "CollectionExists" => call!(CollectionExistsRequest, collections::exists, info::exists),
        "UpdateAliases" => call!(ChangeAliases, aliases::change, info::changed),
        "ListAliases" => call!(ListAliasesRequest, aliases::list, aliases::listed),
        "ListCollectionAliases" => {
            call!(ListCollectionAliasesRequest, aliases::list_of_collection, aliases::listed)
        }
        _ => return None,
    })
}

/// Returns the call of a method of the service `Snapshots`, or `None` if it is unknown.
fn of_snapshots(method: &str) -> Option<QdrantCall> {
    Some(match method {
        "Create" => call!(CreateSnapshotRequest, snapshots::create, snapshots::created),
        "List" => call!(ListSnapshotsRequest, snapshots::list, snapshots::listed),
        "Delete" => call!(DeleteSnapshotRequest, snapshots::delete, snapshots::deleted),
        "CreateFull" => {
            call!(CreateFullSnapshotRequest, snapshots::create_full, snapshots::created)
        }
        "ListFull" => call!(ListFullSnapshotsRequest, snapshots::list_full, snapshots::listed),
        "DeleteFull" => {
            call!(DeleteFullSnapshotRequest, snapshots::delete_full, snapshots::deleted)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use http::Method;
    use protocol::qdrant as pb;
    use serde_json::{Value, json};

    use super::*;

    fn request(path: &str, message: &impl Message) -> RestRequest {
        let message = message.encode_to_vec().into();
        QdrantCall::of(path).unwrap().request(message).unwrap()
    }

    #[test]
    fn every_call_reads_an_empty_message_or_names_what_is_missing() {
        let known = PATHS.iter().map(|path| QdrantCall::of(path).unwrap());
        for call in known {
            if let Err(error) = call.request(Bytes::new()) {
                assert!(!error.message().is_empty());
            }
        }
    }

    #[test]
    fn reflection_describes_every_call() {
        use protocol::grpc::reflection::v1::ServerReflectionRequest;
        use protocol::grpc::reflection::v1::server_reflection_request::MessageRequest;
        use protocol::grpc::reflection::v1::server_reflection_response::MessageResponse;
        for path in PATHS {
            let symbol = path.trim_start_matches('/').replace('/', ".");
            let response = protocol::reflection::respond(ServerReflectionRequest {
                host: String::new(),
                message_request: Some(MessageRequest::FileContainingSymbol(symbol)),
            });
            let described = response.message_response;
            let Some(MessageResponse::FileDescriptorResponse(files)) = &described else {
                panic!("{path}: {described:?}");
            };
            assert!(files.file_descriptor_proto.len() > 1, "{path}");
        }
    }

    #[test]
    fn writes_and_batches_of_queries_may_be_large() {
        for method in [
            "Upsert",
            "Delete",
            "UpdateVectors",
            "SetPayload",
            "OverwritePayload",
            "DeletePayload",
            "ClearPayload",
            "UpdateBatch",
            "QueryBatch",
            "SearchBatch",
            "RecommendBatch",
            "DiscoverBatch",
        ] {
            assert!(QdrantCall::of(&format!("/qdrant.Points/{method}")).unwrap().large, "{method}");
        }
        assert!(!QdrantCall::of("/qdrant.Points/Count").unwrap().large);
    }

    #[test]
    fn the_json_of_many_small_changes_is_within_its_bound() {
        use pb::points_update_operation::{Operation, OverwritePayload};
        let change = Operation::OverwritePayload(OverwritePayload::default());
        let change = pb::PointsUpdateOperation { operation: Some(change) };
        let message = pb::UpdateBatchPoints {
            collection_name: "c".to_owned(),
            operations: vec![change; 1000],
            ..pb::UpdateBatchPoints::default()
        };
        let path = "/qdrant.Points/UpdateBatch";
        let bytes = QdrantCall::of(path).unwrap().bytes_max(&message.encode_to_vec()).unwrap();
        let json = request(path, &message).body.len() as u64;
        // A growing text takes up to three times its length.
        assert!(json > 8 * message.encoded_len() as u64 && 3 * json <= bytes, "{json} {bytes}");
    }

    #[test]
    fn an_upsert_of_many_small_points_needs_little_memory() {
        let point = |id: u64| pb::PointStruct {
            id: Some(pb::PointId { point_id_options: Some(pb::point_id::PointIdOptions::Num(id)) }),
            ..pb::PointStruct::default()
        };
        let points = (0..10_000).map(point).collect();
        let message = pb::UpsertPoints { points, ..pb::UpsertPoints::default() }.encode_to_vec();
        let bytes = QdrantCall::of("/qdrant.Points/Upsert").unwrap().bytes_max(&message).unwrap();
        let json = STREAMED_JSON_GROWTH * message.len() as u64;
        assert!((json..json + (64 << 10)).contains(&bytes), "{bytes} {}", message.len());
    }

    #[test]
    fn the_json_of_an_upsert_is_within_its_bound() {
        use pb::value::Kind;
        let value = |kind: Kind| pb::Value { kind: Some(kind) };
        let list = |of: pb::Value| value(Kind::ListValue(pb::ListValue { values: vec![of; 1000] }));
        let payloads = [
            value(Kind::StringValue("\u{1}".repeat(1000))),
            list(pb::Value::default()),
            list(value(Kind::StructValue(pb::Struct::default()))),
            list(value(Kind::DoubleValue(-f64::MIN_POSITIVE))),
        ];
        let id = pb::PointId { point_id_options: Some(pb::point_id::PointIdOptions::Num(0)) };
        let bare = pb::PointStruct { id: Some(id), ..pb::PointStruct::default() };
        let upserts = payloads.map(|payload| {
            let payload = [(String::new(), payload)].into();
            vec![pb::PointStruct { payload, ..bare.clone() }]
        });
        for points in upserts.into_iter().chain([vec![bare; 1000]]) {
            let message = pb::UpsertPoints {
                collection_name: "c".to_owned(),
                points,
                ..pb::UpsertPoints::default()
            };
            let length = message.encoded_len() as u64;
            let json = request("/qdrant.Points/Upsert", &message).body.len() as u64;
            assert!(json <= JSON_GROWTH * length, "{json} {length}");
        }
    }

    #[test]
    fn empty_names_are_refused() {
        let count = QdrantCall::of("/qdrant.Points/Count").unwrap();
        for timeout in [None, Some(3)] {
            let message = pb::CountPoints { timeout, ..pb::CountPoints::default() };
            let error = count.request(message.encode_to_vec().into()).unwrap_err();
            assert!(error.message().contains("collection_name"), "{error}");
        }
        let list = QdrantCall::of("/qdrant.Collections/List").unwrap();
        assert!(list.request(Bytes::new()).is_ok());
    }

    #[test]
    fn a_search_is_a_query() {
        let search = pb::SearchPoints {
            collection_name: "c".to_owned(),
            vector: vec![0.5, 1.0],
            limit: 3,
            score_threshold: Some(0.25),
            timeout: Some(2),
            ..pb::SearchPoints::default()
        };
        let request = request("/qdrant.Points/Search", &search);
        assert_eq!(request.method, Method::POST);
        assert_eq!(request.path, "/collections/c/points/query?timeout=2");
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        assert_eq!(body, json!({"query": [0.5, 1.0], "limit": 3, "score_threshold": 0.25}));
    }

    #[test]
    fn the_consistency_of_a_read_is_passed_on() {
        use protocol::qdrant::read_consistency::Value as Level;
        let path = |level: Level| {
            let read_consistency = Some(pb::ReadConsistency { value: Some(level) });
            let collection_name = "c".to_owned();
            let count =
                pb::CountPoints { collection_name, read_consistency, ..pb::CountPoints::default() };
            let call = QdrantCall::of("/qdrant.Points/Count").unwrap();
            call.request(count.encode_to_vec().into()).map(|request| request.path)
        };
        let count = "/collections/c/points/count?consistency=";
        let majority = pb::ReadConsistencyType::Majority as i32;
        assert_eq!(path(Level::Type(majority)).unwrap(), format!("{count}majority"));
        assert_eq!(path(Level::Factor(2)).unwrap(), format!("{count}2"));
        assert!(path(Level::Type(9)).unwrap_err().message().contains("read_consistency"));
        let batch = pb::QueryBatchPoints {
            collection_name: "c".to_owned(),
            read_consistency: Some(pb::ReadConsistency { value: Some(Level::Type(0)) }),
            timeout: Some(2),
            ..pb::QueryBatchPoints::default()
        };
        let path = request("/qdrant.Points/QueryBatch", &batch).path;
        assert_eq!(path, "/collections/c/points/query/batch?timeout=2&consistency=all");
    }

    #[test]
    fn changes_of_points_say_if_the_client_waits() {
        let path = |wait| {
            let set = pb::SetPayloadPoints {
                collection_name: "c".to_owned(),
                wait,
                timeout: Some(2),
                ..pb::SetPayloadPoints::default()
            };
            request("/qdrant.Points/SetPayload", &set).path
        };
        let set = "/collections/c/points/payload?timeout=2";
        assert_eq!(path(Some(true)), format!("{set}&wait=true"));
        assert_eq!([path(Some(false)), path(None)], [set, set]);
    }

    #[test]
    fn a_batch_has_one_time_limit() {
        let search = pb::SearchPoints { limit: 1, timeout: Some(1), ..pb::SearchPoints::default() };
        let batch = |timeout| pb::SearchBatchPoints {
            collection_name: "c".to_owned(),
            search_points: vec![search.clone()],
            timeout,
            ..pb::SearchBatchPoints::default()
        };
        let made = request("/qdrant.Points/SearchBatch", &batch(Some(2)));
        assert_eq!(made.path, "/collections/c/points/query/batch?timeout=2");
        let body: Value = serde_json::from_slice(&made.body).unwrap();
        assert_eq!(body, json!({"searches": [{"query": [], "limit": 1}]}));
        let made = request("/qdrant.Points/SearchBatch", &batch(None));
        assert_eq!(made.path, "/collections/c/points/query/batch");
    }

    #[test]
    fn unknown_methods_and_messages_are_refused() {
        assert!(is_call("/qdrant.Points/Fly") && !is_call("/inference.X/Y"));
        let error = QdrantCall::of("/qdrant.Points/Fly").err().unwrap();
        assert!(error.message().starts_with("qdrant.Points/Fly"), "{error}");
        let call = QdrantCall::of("/qdrant.Points/Query").unwrap();
        assert!(call.request(Bytes::from_static(b"\xff\xff")).is_err());
    }

    #[test]
    fn a_partial_response_is_marked() {
        let call = QdrantCall::of("/qdrant.Points/Count").unwrap();
        let json = br#"{"result":{"count":3,"partial":true},"status":"ok","time":0.1}"#;
        let message = call.response(RestResponse::new(json)).unwrap();
        assert!(message.partial);
        let read = pb::CountResponse::decode(message.bytes.as_slice()).unwrap();
        assert_eq!(read.result.unwrap().count, 3);
        let text = br#"{"result":{"hits":[{"value":"\"partial\":true","count":1}]},"time":0.1}"#;
        let facet = QdrantCall::of("/qdrant.Points/Facet").unwrap();
        assert!(!facet.response(RestResponse::new(text)).unwrap().partial);
    }
}
