//! Targets with a set behaviour: one over HTTP/1.1, one over HTTP/2 with gRPC.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use protocol::inference::model_metadata_response::TensorMetadata;
use protocol::inference::{ModelInferRequest, ModelInferResponse, ModelMetadataResponse};
use tokio::net::TcpListener;

/// Behaviour of a target.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Manner {
    /// Answers all.
    Answers,
    /// Refuses every n-th.
    RefusesEach(u64),
    /// Accepts all and answers none.
    Silent,
}

/// A running target; it ends with the test's process.
pub(crate) struct Target {
    /// Its address.
    pub(crate) address: SocketAddr,
    /// Inferences that it accepted.
    pub(crate) taken: Arc<AtomicU64>,
}

type Body = BoxBody<Bytes, Infallible>;

fn full(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).boxed()
}

impl Target {
    /// Starts a target; `grpc` chooses HTTP/2.
    pub(crate) fn start(grpc: bool, manner: Manner) -> Target {
        let taken = Arc::new(AtomicU64::new(0));
        let (count, (tell, told)) = (taken.clone(), std::sync::mpsc::channel());
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
                tell.send(listener.local_addr().unwrap()).unwrap();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    tokio::spawn(serve(TokioIo::new(stream), grpc, manner, count.clone()));
                }
            });
        });
        Target { address: told.recv().unwrap(), taken }
    }
}

async fn serve(
    io: TokioIo<tokio::net::TcpStream>,
    grpc: bool,
    manner: Manner,
    taken: Arc<AtomicU64>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let taken = taken.clone();
        async move {
            Ok::<_, Infallible>(if grpc {
                answer_grpc(request, manner, &taken).await
            } else {
                answer_http(request, manner, &taken).await
            })
        }
    });
    // A client that disconnects ends its connection with an error, which does not matter here.
    let _ = if grpc {
        hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(io, service)
            .await
    } else {
        hyper::server::conn::http1::Builder::new().serve_connection(io, service).await
    };
}

/// Returns true if this inference is to be answered. Never returns if it gets no response.
async fn take(manner: Manner, taken: &AtomicU64) -> bool {
    let number = taken.fetch_add(1, Ordering::SeqCst) + 1;
    match manner {
        Manner::Answers => true,
        Manner::RefusesEach(n) => !number.is_multiple_of(n),
        Manner::Silent => std::future::pending().await,
    }
}

async fn answer_http(
    request: Request<Incoming>,
    manner: Manner,
    taken: &AtomicU64,
) -> Response<Body> {
    if request.method() == http::Method::GET {
        let metadata =
            r#"{"name":"m","inputs":[{"name":"x","datatype":"FP32","shape":[-1,4]}],"outputs":[]}"#;
        return Response::new(full(metadata));
    }
    let _ = request.into_body().collect().await;
    if take(manner, taken).await {
        Response::new(full(r#"{"outputs":[]}"#))
    } else {
        Response::builder().status(503).body(full("too busy")).unwrap()
    }
}

async fn answer_grpc(
    request: Request<Incoming>,
    manner: Manner,
    taken: &AtomicU64,
) -> Response<Body> {
    let method = request.uri().path().to_owned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    if method.ends_with("/ModelMetadata") {
        let input =
            TensorMetadata { name: "x".into(), datatype: "FP32".into(), shape: vec![-1, 4] };
        let metadata =
            ModelMetadataResponse { inputs: vec![input], ..ModelMetadataResponse::default() };
        return grpc_answer(&metadata.encode_to_vec(), "0");
    }
    let inference = ModelInferRequest::decode(body.slice(5..)).unwrap();
    assert_eq!(inference.raw_input_contents[0].len(), 3 * 4 * 4, "three rows of four singles");
    if take(manner, taken).await {
        grpc_answer(&ModelInferResponse::default().encode_to_vec(), "0")
    } else {
        grpc_answer(&[], "8")
    }
}

fn grpc_answer(message: &[u8], status: &'static str) -> Response<Body> {
    let mut frame = vec![0u8];
    frame.extend_from_slice(&(message.len() as u32).to_be_bytes());
    frame.extend_from_slice(message);
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static(status));
    let frames = [Ok(Frame::data(Bytes::from(frame))), Ok(Frame::trailers(trailers))];
    Response::new(StreamBody::new(Frames(frames.into_iter())).boxed())
}

/// A stream of given frames.
struct Frames<I>(I);

impl<I: Iterator + Unpin> futures_core::Stream for Frames<I> {
    type Item = I::Item;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<I::Item>> {
        std::task::Poll::Ready(self.0.next())
    }
}
