//! The right that each route needs, if the server has a file of keys.

use axum::extract::{MatchedPath, Query, RawPathParams};
use http::request::Parts;
use http::{Method, Uri};
use transport::access::{CollectionScope, KeyRole, Operation};

/// Routes that need no key: health checks, the login, and the files of its page.
const OPEN: [&str; 12] = [
    "/v2/health/live",
    "/v2/health/ready",
    "/healthz",
    "/livez",
    "/readyz",
    "/login",
    "/logout",
    "/session",
    "/page.css",
    "/page-login.css",
    "/page-icon.svg",
    "/favicon.ico",
];
/// Routes whose answers list the collections that the key may use.
const LISTS: [&str; 6] =
    ["/", "/collections", "/aliases", "/v1/images", "/cluster/v1/view", "/cluster/v1/work"];
/// Routes between the nodes of a cluster. Their bodies name any collection by its id.
const NODES: [&str; 9] = [
    "/cluster/v1/extract",
    "/cluster/v1/shards/{id}/{shard}/{*rest}",
    "/cluster/v1/read",
    "/cluster/v1/write",
    "/cluster/v1/appended",
    "/cluster/v1/node",
    "/cluster/v1/node/work",
    "/cluster/v1/drain",
    "/cluster/v1/plan",
];
/// Routes that read although they take POST.
const SEARCHES: [&str; 27] = [
    "/cluster/v1/extract",
    "/cluster/v1/shards/{id}/{shard}/{*rest}",
    "/cluster/v1/read",
    "/cluster/v1/plan",
    "/v1/images/{collection}/search",
    "/v1/images/{collection}/identify",
    "/v1/images/{collection}/verify",
    "/v1/images/{collection}/missing",
    "/v1/images/{collection}/features",
    "/collections/{collection}/facet",
    "/collections/{collection}/points",
    "/collections/{collection}/points/scroll",
    "/collections/{collection}/points/count",
    "/collections/{collection}/points/query",
    "/collections/{collection}/points/query/batch",
    "/collections/{collection}/points/query/groups",
    "/collections/{collection}/points/search",
    "/collections/{collection}/points/search/batch",
    "/collections/{collection}/points/search/groups",
    "/collections/{collection}/points/recommend",
    "/collections/{collection}/points/recommend/batch",
    "/collections/{collection}/points/recommend/groups",
    "/collections/{collection}/points/discover",
    "/collections/{collection}/points/discover/batch",
    "/collections/{collection}/points/search/matrix/pairs",
    "/collections/{collection}/points/search/matrix/offsets",
    "/v2/repository/index",
];

/// Returns true if a route needs no key.
pub(super) fn is_open(route: &str) -> bool {
    OPEN.contains(&route)
}

/// Returns the operation of a request, or `None` for a health check. A route that is not known here
/// needs at least the right to read, or an administrator's key for any method except GET.
pub(super) fn operation(request: &Parts, path: &RawPathParams) -> Option<Operation> {
    let route = request.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let parameter = |wanted: &str| {
        let found = path.iter().find(|(name, _)| *name == wanted);
        found.map(|(_, value)| value.to_owned())
    };
    if is_open(route) {
        return None;
    }
    let model = match route {
        "/v1/models/{*rest}" => parameter("rest").map(|rest| tfs_model(&rest).to_owned()),
        _ if route.starts_with("/v1/images/{collection}") => queried_model(&request.uri),
        _ => parameter("model").or_else(|| parameter("recogniser")),
    };
    Some(Operation {
        role: role(&request.method, route),
        model,
        collections: collections(&request.method, route, parameter("collection")),
    })
}

/// Returns true for a request that only an administrator may make.
pub(super) fn is_admin_call(method: &Method, route: &str) -> bool {
    !OPEN.contains(&route) && role(method, route) == KeyRole::Admin
}

/// Returns the collections that a request uses. `name` is the one in its path.
fn collections(method: &Method, route: &str, name: Option<String>) -> CollectionScope {
    match name {
        Some(name) if changes_whole(method, route) => CollectionScope::Whole(name),
        Some(name) => CollectionScope::Points(name),
        None if route == "/collections/aliases" || NODES.contains(&route) => CollectionScope::Any,
        None if LISTS.contains(&route) => CollectionScope::Names,
        None => CollectionScope::Server,
    }
}

/// Returns true if a request creates, removes or changes a collection as a whole.
fn changes_whole(method: &Method, route: &str) -> bool {
    match route {
        "/collections/{collection}" => !method.is_safe(),
        "/v1/images/{collection}" => method == Method::DELETE,
        "/collections/{collection}/segments/{item}"
        | "/v1/images/{collection}/rebuild"
        | "/collections/{collection}/snapshots/recover"
        | "/collections/{collection}/snapshots/upload" => !method.is_safe(),
        _ if route.starts_with("/v1/collections/{collection}/") => !method.is_safe(),
        _ => false,
    }
}

/// Returns the model that the query of a request for images names. The handler refuses a query that
/// cannot be read, or that names two models.
fn queried_model(uri: &Uri) -> Option<String> {
    let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri).ok()?;
    pairs.into_iter().find_map(|(name, value)| (name == "model").then_some(value))
}

/// Returns the name in the rest of a path of TensorFlow Serving's API.
fn tfs_model(rest: &str) -> &str {
    let path = rest.rsplit_once(':').map_or(rest, |(path, _)| path);
    path.split_once('/').map_or(path, |(name, _)| name)
}

/// Returns the least role of a key that a request to `route` needs.
fn role(method: &Method, route: &str) -> KeyRole {
    let post = method == Method::POST;
    let reads = method.is_safe();
    match route {
        "/v2/models/stats" => KeyRole::Read,
        "/v2/models/{model}/rollout" if reads => KeyRole::Read,
        "/v2/models/{model}/rollout" => KeyRole::Admin,
        "/v2" | "/v2/" | "/v2/models" | "/v1/models" | "/v1/models/{*rest}" => KeyRole::Infer,
        "/v2/models/{model}/trace/setting" if reads => KeyRole::Read,
        "/v2/models/{model}/trace/setting" => KeyRole::Admin,
        _ if route.starts_with("/v2/models/{model}") && (reads || route.ends_with("/infer")) => {
            KeyRole::Infer
        }
        _ if route.starts_with("/v1/audio") && (reads || post) => KeyRole::Infer,
        _ if reads || (post && SEARCHES.contains(&route)) => KeyRole::Read,
        // The location may be any file of the machine.
        "/collections/{collection}/snapshots/recover" => KeyRole::Admin,
        _ if route.starts_with("/v1/images/{collection}") => KeyRole::Write,
        _ if route.starts_with("/collections/") => KeyRole::Write,
        "/cluster/v1/write" | "/cluster/v1/appended" => KeyRole::Write,
        _ => KeyRole::Admin,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARDS: &str = "/cluster/v1/shards/{id}/{shard}/{*rest}";

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
            (Method::GET, "/v2/events", Read),
            (Method::GET, "/v2/slow", Read),
            (Method::POST, "/v2/repository/index", Read),
            (Method::GET, "/v2/models/{model}/rollout", Read),
            (Method::POST, "/v2/models/{model}/rollout", Admin),
            (Method::POST, "/v2/repository/models/{model}/load", Admin),
            (Method::POST, "/cluster/v1/read", Read),
            (Method::POST, "/cluster/v1/plan", Read),
            (Method::POST, "/cluster/v1/extract", Read),
            (Method::GET, SHARDS, Read),
            (Method::POST, SHARDS, Read),
            (Method::POST, "/cluster/v1/write", Write),
            (Method::POST, "/cluster/v1/drain", Admin),
            (Method::GET, "/cluster/v1/view", Read),
            (Method::GET, "/cluster/v1/work", Read),
            (Method::POST, "/collections/{collection}/points/query", Read),
            (Method::POST, "/collections/{collection}/points/search/batch", Read),
            (Method::PUT, "/collections/{collection}/points/vectors", Write),
            (Method::PUT, "/collections/{collection}/points", Write),
            (Method::POST, "/collections/{collection}/points/delete", Write),
            (Method::DELETE, "/collections/{collection}", Write),
            (Method::POST, "/collections/aliases", Write),
            (Method::GET, "/collections/{collection}/snapshots/{item}", Read),
            (Method::POST, "/collections/{collection}/snapshots", Write),
            (Method::PUT, "/collections/{collection}/snapshots/recover", Admin),
            (Method::GET, "/v1/collections/{collection}/backups", Read),
            (Method::POST, "/v1/collections/{collection}/backups", Admin),
            (Method::POST, "/v1/collections/{collection}/restore", Admin),
            (Method::POST, "/v1/images/{collection}/search", Read),
            (Method::POST, "/v1/images/{collection}/identify", Read),
            (Method::POST, "/v1/images/{collection}/verify", Read),
            (Method::POST, "/v1/images/{collection}/features", Read),
            (Method::PUT, "/v1/images/{collection}/features", Write),
            (Method::GET, "/v1/images/{collection}/{id}/features", Read),
            (Method::PUT, "/v1/images/{collection}", Write),
            (Method::DELETE, "/v1/images/{collection}/{id}", Write),
            (Method::PUT, "/v1/log", Admin),
            (Method::POST, "/v2/logging", Admin),
            (Method::PUT, "/v1/trace", Admin),
            (Method::GET, "/v1/trace", Read),
            (Method::GET, "/v2/models/{model}/trace/setting", Read),
            (Method::POST, "/v2/models/{model}/trace/setting", Admin),
        ] {
            assert_eq!(role(&method, route), wanted, "{method} {route}");
        }
    }

    #[test]
    fn collections_of_routes() {
        let scope = |method: Method, route: &str| {
            let name = route.contains("{collection}").then(|| "c".to_owned());
            collections(&method, route, name)
        };
        let (points, whole) =
            (CollectionScope::Points("c".into()), CollectionScope::Whole("c".into()));
        assert_eq!(scope(Method::GET, "/collections/{collection}"), points);
        assert_eq!(scope(Method::PUT, "/collections/{collection}/points"), points);
        assert_eq!(scope(Method::PUT, "/collections/{collection}/index"), points);
        for method in [Method::PUT, Method::PATCH, Method::DELETE] {
            assert_eq!(scope(method, "/collections/{collection}"), whole);
        }
        assert_eq!(scope(Method::DELETE, "/v1/images/{collection}"), whole);
        assert_eq!(scope(Method::POST, "/collections/{collection}/snapshots/upload"), whole);
        assert_eq!(scope(Method::POST, "/v1/collections/{collection}/restore"), whole);
        assert_eq!(scope(Method::POST, "/collections/aliases"), CollectionScope::Any);
        for route in ["/cluster/v1/read", "/cluster/v1/extract", SHARDS] {
            assert_eq!(scope(Method::POST, route), CollectionScope::Any, "{route}");
        }
        for list in ["/cluster/v1/view", "/cluster/v1/work"] {
            assert_eq!(scope(Method::GET, list), CollectionScope::Names, "{list}");
        }
        assert_eq!(scope(Method::GET, "/collections"), CollectionScope::Names);
        assert_eq!(scope(Method::GET, "/metrics"), CollectionScope::Server);
    }

    #[test]
    fn names_in_tensorflow_servings_paths() {
        for rest in ["m", "m:predict", "m/versions/3:predict", "m/labels/a", "m/metadata"] {
            assert_eq!(tfs_model(rest), "m");
        }
        assert_eq!(tfs_model("a:b:predict"), "a:b");
    }
}
