//! The right that each route needs, if the server has a file of keys.

use axum::extract::{MatchedPath, RawPathParams};
use http::Method;
use http::request::Parts;
use transport::access::{KeyRole, Operation};

/// Routes of health checks, which need no key.
const OPEN: [&str; 5] = ["/v2/health/live", "/v2/health/ready", "/healthz", "/livez", "/readyz"];
/// Routes that read although they take POST.
const SEARCHES: [&str; 9] = [
    "/v1/images/{collection}/search",
    "/v1/images/{collection}/missing",
    "/collections/{collection}/facet",
    "/collections/{collection}/points",
    "/collections/{collection}/points/scroll",
    "/collections/{collection}/points/count",
    "/collections/{collection}/points/query",
    "/collections/{collection}/points/query/batch",
    "/v2/repository/index",
];

/// Returns what a request does; `None` for a health check. A route that is not known here needs
/// at least the right to read, and one that is not a GET an administrator's key.
pub(super) fn operation(request: &Parts, path: &RawPathParams) -> Option<Operation> {
    let route = request.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let parameter = |wanted: &str| {
        let found = path.iter().find(|(name, _)| *name == wanted);
        found.map(|(_, value)| value.to_owned())
    };
    if OPEN.contains(&route) {
        return None;
    }
    let model = match route {
        "/v1/models/{*rest}" => parameter("rest").map(|rest| tfs_model(&rest).to_owned()),
        _ => parameter("model").or_else(|| parameter("recogniser")),
    };
    Some(Operation {
        role: role(&request.method, route),
        model,
        collection: parameter("collection"),
        any_collection: route == "/collections/aliases",
    })
}

/// Returns the name in the rest of a path of TensorFlow Serving's API.
fn tfs_model(rest: &str) -> &str {
    let path = rest.rsplit_once(':').map_or(rest, |(path, _)| path);
    path.split_once('/').map_or(path, |(name, _)| name)
}

fn role(method: &Method, route: &str) -> KeyRole {
    let post = method == Method::POST;
    let reads = method.is_safe();
    match route {
        "/v2/models/stats" => KeyRole::Read,
        "/v2" | "/v2/" | "/v2/models" | "/v1/models" | "/v1/models/{*rest}" => KeyRole::Infer,
        _ if route.starts_with("/v2/models/{model}") => KeyRole::Infer,
        _ if route.starts_with("/v1/audio") && (reads || post) => KeyRole::Infer,
        _ if reads || (post && SEARCHES.contains(&route)) => KeyRole::Read,
        _ if route.starts_with("/v1/images/{collection}") => KeyRole::Write,
        _ if route.starts_with("/collections/") => KeyRole::Write,
        _ => KeyRole::Admin,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_of_routes() {
        use KeyRole::{Admin, Infer, Read, Write};
        for (method, route, wanted) in [
            (Method::POST, "/v2/models/{model}/infer", Infer),
            (Method::GET, "/v1/models/{*rest}", Infer),
            (Method::POST, "/v1/audio/{recogniser}", Infer),
            (Method::PUT, "/v1/audio/{recogniser}/speakers/{speaker}", Admin),
            (Method::GET, "/metrics", Read),
            (Method::GET, "/v2/models/stats", Read),
            (Method::POST, "/v2/repository/index", Read),
            (Method::POST, "/v2/repository/models/{model}/load", Admin),
            (Method::POST, "/collections/{collection}/points/query", Read),
            (Method::PUT, "/collections/{collection}/points", Write),
            (Method::POST, "/collections/{collection}/points/delete", Write),
            (Method::DELETE, "/collections/{collection}", Write),
            (Method::POST, "/collections/aliases", Write),
            (Method::POST, "/v1/images/{collection}/search", Read),
            (Method::PUT, "/v1/images/{collection}", Write),
            (Method::DELETE, "/v1/images/{collection}/{id}", Write),
            (Method::PUT, "/v2/log", Admin),
        ] {
            assert_eq!(role(&method, route), wanted, "{method} {route}");
        }
    }

    #[test]
    fn names_in_tensorflow_servings_paths() {
        for rest in ["m", "m:predict", "m/versions/3:predict", "m/labels/a", "m/metadata"] {
            assert_eq!(tfs_model(rest), "m");
        }
        assert_eq!(tfs_model("a:b:predict"), "a:b");
    }
}
