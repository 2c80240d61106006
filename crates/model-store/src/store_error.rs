//! Errors of object stores: their kind, their innermost cause, and a remedy.

use base::{Error, ErrorKind};

/// Settings for S3. One of them must be present, or the machine must have a role.
const S3_CREDENTIALS: [&str; 6] = [
    "aws_access_key_id",
    "aws_web_identity_token_file",
    "aws_container_credentials_relative_uri",
    "aws_container_credentials_full_uri",
    "aws_skip_signature",
    "aws_bearer_token_bedrock",
];

/// Error of a store that refuses the credentials or does not answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreRefusal {
    /// Kind of the error if the store refuses the credentials.
    pub(crate) kind: ErrorKind,
    pub(crate) remedy: &'static str,
}

impl StoreRefusal {
    /// Returns the refusal of a store with this URL scheme and these options.
    pub(crate) fn of(scheme: &str, options: &[(String, String)]) -> StoreRefusal {
        StoreRefusal { kind: ErrorKind::FailedPrecondition, remedy: remedy(scheme, options) }
    }
}

/// Converts an error of the store `shown`, and adds a remedy.
pub(crate) fn convert(error: object_store::Error, shown: &str, refusal: StoreRefusal) -> Error {
    use object_store::Error as StoreError;
    let cause = match &error {
        // The innermost reason does not name the object.
        StoreError::InvalidPath { source } => source.to_string(),
        _ => innermost_cause(&error),
    };
    let missing =
        (ErrorKind::NotFound, "check bucket, path and region in the URL and the environment");
    let (kind, remedy) = match &error {
        StoreError::NotFound { .. } => missing,
        StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
            (refusal.kind, refusal.remedy)
        }
        // Errors of listings have no kind of their own.
        StoreError::Generic { .. } if is_refusal(&cause, &error.to_string()) => {
            (refusal.kind, refusal.remedy)
        }
        StoreError::Generic { .. } if cause.starts_with("404") => missing,
        StoreError::Precondition { .. } => {
            (ErrorKind::Unavailable, "the object changed meanwhile; it is read again")
        }
        StoreError::AlreadyExists { .. } => {
            (ErrorKind::AlreadyExists, "versions never change; publish under another number")
        }
        StoreError::InvalidPath { .. } => (
            ErrorKind::Unavailable,
            "the store cannot be listed with this name; rename or delete the object",
        ),
        // A request that is repeated succeeds once there is space.
        _ if is_full(&error) => {
            (ErrorKind::Unavailable, "the disk of the store is full; free space on it")
        }
        _ => (ErrorKind::Unavailable, "the store may be unreachable or overloaded"),
    };
    Error::new(kind, format!("{shown}: {cause}; {remedy}")).with_source(error)
}

/// Returns true if the cause of `error` is a directory of this machine without space.
pub fn is_full(error: &(dyn std::error::Error + 'static)) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(next) = cause {
        let kind = next.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        if matches!(kind, Some(StorageFull | QuotaExceeded)) {
            return true;
        }
        cause = next.source();
    }
    false
}

/// Returns true if the store refuses the credentials, or if there are none. `cause` is the
/// innermost reason of the error `whole`.
fn is_refusal(cause: &str, whole: &str) -> bool {
    // 400 is the answer to an expired token and to a wrong region; a redirect is another.
    ["400", "401", "403", "Received redirect"].iter().any(|start| cause.starts_with(start))
        // The addresses of the services that give a machine's role.
        || ["169.254.169.254", "metadata.google.internal"].iter().any(|host| whole.contains(host))
}

/// Returns the innermost reason of `error`. The outer ones repeat it with times, so they differ at
/// each try.
fn innermost_cause(error: &object_store::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    let text = innermost.to_string();
    let text = text.strip_prefix("Server returned non-2xx status code: ").unwrap_or(&text);
    let tag = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        rest.split_once(&format!("</{name}>")).map(|(content, _)| content)
    };
    // S3 and Azure explain refusals in XML.
    match (text.split_once('<'), tag("Code"), tag("Message")) {
        (Some((before, _)), Some(code), Some(message)) => {
            format!("{}: {code}: {message}", before.trim_end_matches([' ', ':']))
        }
        _ => text.to_owned(),
    }
}

/// Returns the advice for a store that refuses the credentials, by the URL's scheme.
fn remedy(scheme: &str, options: &[(String, String)]) -> &'static str {
    let has = |names: &[&str]| options.iter().any(|(name, _)| names.contains(&name.as_str()));
    match scheme {
        "s3" | "s3a" if !has(&S3_CREDENTIALS) => {
            "no credentials are set: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, give this machine \
             a role, or set AWS_SKIP_SIGNATURE=true for a public bucket"
        }
        "s3" | "s3a" => {
            "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL; the key \
             needs s3:ListBucket and s3:GetObject, and to publish s3:PutObject and s3:DeleteObject"
        }
        "gs" => {
            "set GOOGLE_SERVICE_ACCOUNT to the path of a key file, or give this machine a service account"
        }
        "az" | "azure" | "abfs" | "abfss" => {
            "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or give this machine an identity"
        }
        "http" | "https" => {
            "check host and path; the server must answer PROPFIND, as WebDAV servers do"
        }
        _ => "check the path and its permissions",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_with_an_invalid_name_is_named() {
        let invalid = object_store::path::Path::parse("models/a/./x").unwrap_err();
        let refusal = StoreRefusal { kind: ErrorKind::FailedPrecondition, remedy: "the remedy" };
        let error = convert(invalid.into(), "s3://b", refusal);
        assert!(error.message().contains("\"models/a/./x\""), "{error}");
        assert!(error.message().ends_with("rename or delete the object"), "{error}");
    }

    #[test]
    fn explanations_in_xml_are_read() {
        let body = "Server returned non-2xx status code: 403 Forbidden: <?xml version=\"1.0\"?>\
                    <Error><Code>InvalidAccessKeyId</Code><Message>No such key</Message></Error>";
        let inner = std::io::Error::other(body);
        let error = object_store::Error::Generic { store: "s3", source: Box::new(inner) };
        assert_eq!(innermost_cause(&error), "403 Forbidden: InvalidAccessKeyId: No such key");
        let refusal = StoreRefusal { kind: ErrorKind::FailedPrecondition, remedy: "the remedy" };
        let refused = convert(error, "s3://b", refusal);
        assert_eq!(refused.kind(), ErrorKind::FailedPrecondition);
        assert!(refused.message().ends_with("No such key; the remedy"), "{refused}");
        assert!(std::error::Error::source(&refused).is_some());
    }
}
