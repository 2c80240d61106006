//! Tests of the whole server over sockets.

mod edge;
mod images;
mod openapi;
