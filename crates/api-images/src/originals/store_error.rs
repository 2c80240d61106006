//! Errors of the store of originals.

use base::{Error, ErrorKind};

/// Converts an error of reading an original. Clients see the message for one that is lost, so it
/// does not show where the files are.
pub(super) fn unread(error: object_store::Error) -> Error {
    match error {
        object_store::Error::NotFound { .. } => Error::not_found(
            "the original file of the image is not in the store of original images; copy it back \
             from a copy of the store, or delete the image and upload it again",
        ),
        error => failed(error),
    }
}

/// Returns the error of an operation on the store.
pub(crate) fn failed(error: object_store::Error) -> Error {
    if is_full(&error) {
        return Error::storage_full(format!(
            "the store of original images is full: {error}; free space, or use another disk"
        ))
        .with_source(error);
    }
    let kind = match error {
        object_store::Error::NotFound { .. } => ErrorKind::NotFound,
        // No client can correct the credentials, and the state of a collection is no reason.
        object_store::Error::PermissionDenied { .. }
        | object_store::Error::Unauthenticated { .. } => {
            return Error::unavailable(format!(
                "the store of original images refuses the server: {error}; correct its credentials \
                 and their rights"
            ))
            .with_source(error);
        }
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, "the store of original images").caused_by(error)
}

/// Returns true if the cause of an error is a full disk or an exhausted quota.
fn is_full(error: &object_store::Error) -> bool {
    use std::io::{Error as IoError, ErrorKind::QuotaExceeded, ErrorKind::StorageFull};
    let causes =
        std::iter::successors(Some(error as &(dyn std::error::Error + 'static)), |error| {
            error.source()
        });
    causes
        .filter_map(|cause| cause.downcast_ref::<IoError>())
        .any(|cause| matches!(cause.kind(), StorageFull | QuotaExceeded))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_read_says_that_an_original_is_lost() {
        let missing = || object_store::Error::NotFound {
            path: "bucket".to_owned(),
            source: "no such bucket".into(),
        };
        assert!(unread(missing()).message().contains("delete the image"));
        // A write fails in this way if the bucket does not exist.
        let failed = failed(missing());
        assert_eq!(failed.kind(), ErrorKind::NotFound);
        assert!(failed.message().contains("no such bucket"), "{failed}");
    }

    #[test]
    fn refused_credentials_are_no_conflict() {
        let denied =
            object_store::Error::PermissionDenied { path: "a".to_owned(), source: "403".into() };
        let failed = failed(denied);
        assert_eq!(failed.kind(), ErrorKind::Unavailable);
        assert!(failed.message().contains("correct its credentials"), "{failed}");
    }
}
