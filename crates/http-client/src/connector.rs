//! Opens connections, plain or with TLS.

use std::error::Error as StdError;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, io};

use http::Uri;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::Service;

use crate::tls::ClientTls;

/// Timeout of a connect. An address without a machine does not refuse a connection, but gives no
/// answer at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of a connect with the handshake of TLS. A busy server answers late.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

type BoxError = Box<dyn StdError + Send + Sync>;

/// Connector of an HTTP client. All of its connections use TLS, or none does.
#[derive(Clone)]
pub(super) struct Connector {
    tcp: HttpConnector,
    tls: Option<Arc<ClientTls>>,
}

impl Connector {
    pub(super) fn new(tls: Option<Arc<ClientTls>>) -> Connector {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        // Addresses that begin with https are for this connector too.
        tcp.enforce_http(tls.is_none());
        Connector { tcp, tls }
    }
}

impl Service<Uri> for Connector {
    type Response = MaybeHttpsStream<TokioIo<TcpStream>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Some(tls) = &self.tls else {
            let connect = self.tcp.call(uri);
            return Box::pin(async move { Ok(MaybeHttpsStream::Http(connect.await?)) });
        };
        // The certificates may have been read again since the last connection.
        let mut connector = HttpsConnector::from((self.tcp.clone(), tls.config()));
        connector.enforce_https();
        let connect = connector.call(uri);
        Box::pin(async move {
            tokio::time::timeout(HANDSHAKE_TIMEOUT, connect).await.unwrap_or_else(|_| {
                let text = format!("no handshake of TLS within {} s", HANDSHAKE_TIMEOUT.as_secs());
                Err(io::Error::new(io::ErrorKind::TimedOut, text).into())
            })
        })
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Connector").field("tls", &self.tls).finish_non_exhaustive()
    }
}
