//! Tests of the whole server over sockets.

mod audio;
mod edge;
mod images;
mod images_archives;
mod images_cluster;
mod images_duplicates;
mod images_rebuild;
mod keys;
mod metrics;
mod openapi;
mod request_log;
mod serving;
