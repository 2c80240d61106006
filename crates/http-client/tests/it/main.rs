//! The client against listeners with TLS.

mod https;
