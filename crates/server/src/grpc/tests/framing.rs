//! Calls with one message: its frame, its compression, its size, and the headers around it.

use super::*;

#[test]
fn compressed_requests_are_read_within_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _engine) = served(dir.path(), |config| config.listeners.body_bytes_max = 64 << 10);
    run(async {
        for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Deflate] {
            let mut client = client!(served).send_compressed(encoding);
            let asked = pb::ModelReadyRequest { name: "echo".into(), version: String::new() };
            assert!(client.model_ready(asked).await.unwrap().into_inner().ready);
            let answer = client.model_infer(request(10_000)).await.unwrap().into_inner();
            assert_eq!(answer.raw_output_contents[0].len(), 40_000);
            let status = client.model_infer(request(20_000)).await.unwrap_err();
            assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        }
    });
}

struct CallAnswer {
    http_status: u16,
    status: String,
    headers: http::HeaderMap,
    body: Bytes,
}

/// Sends `request` with a body of these pieces.
async fn send(
    served: &Loopback,
    request: http::request::Builder,
    pieces: Vec<Bytes>,
) -> CallAnswer {
    let pieces = tokio_stream::iter(pieces.into_iter().map(|piece| Ok(Frame::data(piece))));
    let body: StreamBody<Pieces> = StreamBody::new(Box::pin(pieces));
    let answer = connect(served).await.send_request(request.body(body).unwrap()).await.unwrap();
    let http_status = answer.status().as_u16();
    let headers = answer.headers().clone();
    let collected = answer.into_body().collect().await.unwrap();
    let status = headers.get("grpc-status").or_else(|| collected.trailers()?.get("grpc-status"));
    let status = status.unwrap().to_str().unwrap().to_owned();
    CallAnswer { http_status, status, headers, body: collected.to_bytes() }
}

/// Sends a body in these pieces to ModelInfer. Returns the gRPC status and the message.
async fn call(served: &Loopback, pieces: Vec<Bytes>) -> (String, Bytes) {
    let answer = send(served, post(served, "ModelInfer"), pieces).await;
    (answer.status, answer.body)
}

#[test]
fn a_message_may_arrive_in_pieces_of_any_size() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _engine) = served(dir.path(), |_| {});
    let message = request(5000).encode_to_vec();
    let frame = prefixed(0, &message, message.len());
    run(async {
        let bytes: Vec<_> = (1..16).collect();
        let cuts: [&[usize]; 7] = [&[], &[1], &[4], &[5], &[6], &[frame.len() - 1], &bytes];
        for cuts in cuts {
            let ends = cuts.iter().copied().chain([frame.len()]);
            let pieces = std::iter::once(0).chain(cuts.iter().copied()).zip(ends);
            let pieces = pieces.map(|(from, to)| frame.slice(from..to)).collect();
            let (status, answer) = call(&served, pieces).await;
            assert_eq!(status, "0", "{cuts:?}");
            assert_eq!(answer[0], 0);
            assert_eq!(
                u32::from_be_bytes(answer[1..5].try_into().unwrap()) as usize,
                answer.len() - 5
            );
            let answer = pb::ModelInferResponse::decode(answer.slice(5..)).unwrap();
            assert_eq!(answer.raw_output_contents[0].len(), 20_000);
        }
    });
}

#[test]
fn a_body_that_is_not_one_message_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _engine) = served(dir.path(), |config| config.listeners.body_bytes_max = 1 << 20);
    let message = request(4).encode_to_vec();
    let whole = prefixed(0, &message, message.len());
    let wrong: [(&str, Vec<Bytes>, &str); 8] = [
        ("nothing", vec![], "3"),
        ("half a prefix", vec![whole.slice(..3)], "3"),
        ("cut off", vec![whole.slice(..whole.len() - 1)], "3"),
        ("two messages", vec![whole.clone(), whole.clone()], "3"),
        ("a byte too many", vec![whole.clone(), Bytes::from_static(&[7])], "3"),
        ("compressed in secret", vec![prefixed(1, &message, message.len())], "3"),
        ("no protobuf", vec![prefixed(0, &[0xff; 9], 9)], "3"),
        ("announced too large", vec![prefixed(0, &message, (1 << 20) + 1)], "8"),
    ];
    run(async {
        for (what, pieces, wanted) in wrong {
            let (status, answer) = call(&served, pieces).await;
            assert_eq!((status.as_str(), answer.len()), (wanted, 0), "{what}");
        }
        until(|| served.server.requests.admitted() == 0).await;
        assert_eq!(call(&served, vec![whole]).await.0, "0");
    });
    let refused = |status| {
        let labels =
            metrics::RequestLabels { model: "".into(), version: 0, protocol: "oip-grpc", status };
        served.server.core.metrics.requests.get_or_create(&labels).get()
    };
    assert_eq!((refused("invalid_argument"), refused("too_large")), (7, 1));
}

#[test]
fn a_small_call_takes_one_message_of_4_mib() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _engine) = served(dir.path(), |_| {});
    let name = pb::ModelReadyRequest { name: "echo".into(), ..Default::default() }.encode_to_vec();
    let whole = prefixed(0, &name, name.len());
    let large = vec![0; (4 << 20) + 1];
    let packed = gzip(&large);
    let wrong: [(&str, Vec<Bytes>, &str); 6] = [
        ("no body", vec![], "3"),
        ("an empty piece", vec![Bytes::new()], "3"),
        ("two messages", vec![whole.clone(), whole.clone()], "3"),
        ("announced too large", vec![prefixed(0, &name, large.len())], "8"),
        ("too large", vec![prefixed(0, &large, large.len())], "8"),
        ("too large when decompressed", vec![prefixed(1, &packed, packed.len())], "8"),
    ];
    let request = || post(&served, "ModelReady").header("grpc-encoding", "gzip");
    run(async {
        for (what, pieces, wanted) in wrong {
            let answer = send(&served, request(), pieces).await;
            assert_eq!((answer.status.as_str(), answer.body.len()), (wanted, 0), "{what}");
        }
        assert_eq!(send(&served, request(), vec![whole]).await.status, "0");
        until(|| served.server.requests.memory.used() == 0).await;
    });
}

/// The model answers, but the frame of its answer exceeds the budget.
#[test]
fn an_answer_that_cannot_be_encoded_counts_as_failed() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _engine) =
        served(dir.path(), |config| config.listeners.request_memory_bytes = Some(BUDGET));
    let message = request(2_200_000).encode_to_vec();
    let (status, _) =
        run(async { call(&served, vec![prefixed(0, &message, message.len())]).await });
    assert_eq!(status, "8");
    let counted = |status| {
        let labels = metrics::RequestLabels {
            model: "echo".into(),
            version: 1,
            protocol: "oip-grpc",
            status,
        };
        served.server.core.metrics.requests.get_or_create(&labels).get()
    };
    assert_eq!((counted("ok"), counted("too_large")), (0, 1));
}

/// gRPC's compression rules: UNIMPLEMENTED, with the accepted encodings.
#[test]
fn an_unknown_encoding_is_answered_by_the_known_ones() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _engine) = served(dir.path(), |_| {});
    let message = request(1).encode_to_vec();
    let frame = prefixed(1, &message, message.len());
    run(async {
        for method in ["ModelInfer", "ModelStreamInfer", "ServerLive"] {
            for encoding in ["snappy", "zstd", "gzip,deflate"] {
                let request = post(&served, method).header("grpc-encoding", encoding);
                let answer = send(&served, request, vec![frame.clone()]).await;
                assert_eq!(answer.status, "12", "{method} {encoding}");
                assert_eq!(answer.headers["grpc-accept-encoding"], "identity,gzip,deflate");
            }
        }
        let request = post(&served, "ServerLive").header("grpc-encoding", "identity");
        let answer = send(&served, request, vec![prefixed(0, &[], 0)]).await;
        assert_eq!(answer.status, "0");
        assert!(!answer.headers.contains_key("grpc-accept-encoding"));
    });
}

#[test]
fn other_content_types_are_unsupported() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _engine) = served(dir.path(), |_| {});
    let post = |content_type: Option<&str>| {
        let uri = format!("http://{}/inference.GRPCInferenceService/ServerLive", served.grpc);
        let request = http::Request::post(uri);
        match content_type {
            Some(value) => request.header("content-type", value),
            None => request,
        }
    };
    let empty = || vec![prefixed(0, &[], 0)];
    run(async {
        for known in ["application/grpc", "Application/gRPC+proto", "application/grpc;a=b"] {
            let answer = send(&served, post(Some(known)), empty()).await;
            assert_eq!((answer.http_status, answer.status.as_str()), (200, "0"), "{known}");
        }
        let others = ["application/json", "application/grpc-web", "application/grp", ""];
        for other in others.map(Some).into_iter().chain([None]) {
            let answer = send(&served, post(other), empty()).await;
            assert_eq!(answer.http_status, 415, "{other:?}");
            assert!(answer.headers["grpc-message"].to_str().unwrap().contains("application/grpc"));
        }
    });
}

/// Returns a field that holds `inner`.
fn within(tag: u8, inner: &[u8]) -> Vec<u8> {
    let mut out = vec![(tag << 3) | 2];
    let mut length = inner.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(inner);
    out
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    to.write_all(bytes).unwrap();
    to.finish().unwrap()
}

/// Returns two million empty elements in 4 MB, or in 4 KB of gzip: `tag` of the request, or of the
/// contents of an input.
fn bomb(tag: u8, within_contents: bool) -> Vec<u8> {
    let elements = [(tag << 3) | 2, 0].repeat(2_000_000);
    if within_contents { within(5, &within(5, &elements)) } else { elements }
}

#[test]
fn bombs_of_empty_elements_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _engine) =
        served(dir.path(), |config| config.listeners.request_memory_bytes = Some(BUDGET));
    run(async {
        for (bomb, wanted) in [(bomb(5, false), "3"), (bomb(6, false), "3"), (bomb(8, true), "8")] {
            let (status, _) = call(&served, vec![prefixed(0, &bomb, bomb.len())]).await;
            assert_eq!(status, wanted);
            let packed = gzip(&bomb);
            let asked = post(&served, "ModelInfer").header("grpc-encoding", "gzip");
            let answer = send(&served, asked, vec![prefixed(1, &packed, packed.len())]).await;
            assert_eq!(answer.status, wanted);
        }
        // Other methods take messages of 4 MiB, which may become 256 times as much.
        let strings = [0x0a, 0].repeat(200_000);
        let asked = post(&served, "ModelReady");
        let body = http_body_util::Full::new(prefixed(0, &strings, strings.len()));
        let answer = connect(&served).await.send_request(asked.body(body).unwrap()).await.unwrap();
        assert_eq!(answer.headers()["grpc-status"], "8");
        until(|| served.server.requests.memory.used() == 0).await;
        client!(served).model_infer(request(1)).await.unwrap();
        until(|| {
            served.server.requests.memory.used() == 0 && served.server.requests.admitted() == 0
        })
        .await;
    });
    assert!(
        served.server.requests.memory.peak() <= BUDGET,
        "{}",
        served.server.requests.memory.peak()
    );
}

/// Checks that clients without a key cannot hold the memory of requests with slow messages.
#[test]
fn a_message_without_a_key_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _engine) = served(dir.path(), |config| {
        config.listeners.admin_key = Some(transport::access::Secret("key".to_owned()));
    });
    let upsert = |key: &str| {
        http::Request::post(format!("http://{}/qdrant.Points/Upsert", served.grpc))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("api-key", key)
    };
    run(async {
        for key in ["", "other"] {
            let request = upsert(key).body(pieces(false)).unwrap();
            let answer = connect(&served).await.send_request(request).await.unwrap();
            assert_eq!(answer.headers()["grpc-status"], "16", "{key}");
        }
        assert_eq!(send(&served, upsert("key"), vec![]).await.status, "3", "it has no message");
    });
}
