//! The pages' files, built into the binary. They load nothing from other hosts.

use axum::Router;
use axum::routing::get;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use transport::Reply;

/// Allows scripts, styles, images and requests of this server only, and no frame around the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Policy of the page for audio, which also plays the user's file.
const AUDIO_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                            img-src 'self'; media-src blob:; base-uri 'none'; form-action 'none'; \
                            frame-ancestors 'none'";

/// Policy of the pages for images and the API, which also show files that they receive or send.
const IMAGES_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                             img-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Path, content type and contents of each file.
const FILES: [(&str, &str, &str); 18] = [
    ("/page.css", "text/css; charset=utf-8", include_str!("page.css")),
    ("/page-audio.css", "text/css; charset=utf-8", include_str!("page-audio.css")),
    ("/page-audio.js", "text/javascript; charset=utf-8", include_str!("page-audio.js")),
    ("/page-audio-wave.js", "text/javascript; charset=utf-8", include_str!("page-audio-wave.js")),
    ("/page-docs.css", "text/css; charset=utf-8", include_str!("page-docs.css")),
    ("/page-docs.js", "text/javascript; charset=utf-8", include_str!("page-docs.js")),
    ("/page-docs-call.js", "text/javascript; charset=utf-8", include_str!("page-docs-call.js")),
    ("/page-images.css", "text/css; charset=utf-8", include_str!("page-images.css")),
    ("/page-images.js", "text/javascript; charset=utf-8", include_str!("page-images.js")),
    ("/page-images-add.js", "text/javascript; charset=utf-8", include_str!("page-images-add.js")),
    ("/page-images-api.js", "text/javascript; charset=utf-8", include_str!("page-images-api.js")),
    (
        "/page-images-match.js",
        "text/javascript; charset=utf-8",
        include_str!("page-images-match.js"),
    ),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("page.js")),
    ("/page-card.js", "text/javascript; charset=utf-8", include_str!("page-card.js")),
    ("/page-chart.js", "text/javascript; charset=utf-8", include_str!("page-chart.js")),
    ("/page-dom.js", "text/javascript; charset=utf-8", include_str!("page-dom.js")),
    ("/page-icon.svg", "image/svg+xml", include_str!("page-icon.svg")),
    // Browsers request this path if a response, such as JSON, names no icon.
    ("/favicon.ico", "image/svg+xml", include_str!("page-icon.svg")),
];

pub(crate) fn page() -> Reply {
    guarded(Reply::body("text/html; charset=utf-8", include_str!("page.html")), POLICY)
        .with_header(header::VARY, HeaderValue::from_static("accept"))
}

async fn audio_page() -> Reply {
    guarded(Reply::body("text/html; charset=utf-8", include_str!("audio.html")), AUDIO_POLICY)
}

async fn images_page() -> Reply {
    guarded(Reply::body("text/html; charset=utf-8", include_str!("images.html")), IMAGES_POLICY)
}

async fn docs_page() -> Reply {
    guarded(Reply::body("text/html; charset=utf-8", include_str!("docs.html")), IMAGES_POLICY)
}

/// Returns the routes of the pages for audio, images and the API, and of the files of all pages.
pub(crate) fn routes() -> Router {
    let router = Router::new()
        .route("/audio", get(audio_page))
        .route("/images", get(images_page))
        .route("/docs", get(docs_page));
    FILES.iter().fold(router, |router, &(path, content_type, text)| {
        router.route(
            path,
            get(move || async move { guarded(Reply::body(content_type, text), POLICY) }),
        )
    })
}

fn guarded(reply: Reply, policy: &'static str) -> Reply {
    reply
        .with_header(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"))
        .with_header(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy))
        .with_header(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
        .with_header(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"))
        .with_header(
            HeaderName::from_static("cross-origin-resource-policy"),
            HeaderValue::from_static("same-origin"),
        )
}

/// Returns true if a client prefers the page to text: it accepts `text/html` by name, at least as
/// much as `text/plain`. A client that accepts anything (curl) gets the text.
pub(crate) fn wants_page(headers: &HeaderMap) -> bool {
    let accepted: Vec<&str> =
        headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let quality = |wanted: &str| {
        let ranges = accepted.iter().flat_map(|value| value.split(','));
        ranges.filter_map(|range| named(range, wanted)).fold(0.0, f32::max)
    };
    let html = quality("text/html");
    html > 0.0 && html >= quality("text/plain")
}

/// Returns the quality of a media range if it is for `wanted`.
fn named(range: &str, wanted: &str) -> Option<f32> {
    let mut parts = range.split(';').map(str::trim);
    if !parts.next()?.eq_ignore_ascii_case(wanted) {
        return None;
    }
    let quality =
        parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
    quality.map_or(Some(1.0), |quality| quality.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: [&str; 4] = [
        include_str!("page.html"),
        include_str!("audio.html"),
        include_str!("images.html"),
        include_str!("docs.html"),
    ];

    #[test]
    fn browsers_get_the_page_and_programs_the_text() {
        let wants = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_str(accept).unwrap());
            wants_page(&headers)
        };
        assert!(wants(
            "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"
        ));
        assert!(wants("text/html"));
        assert!(wants("text/plain;q=0.5, Text/HTML ; q=0.7"));
        assert!(!wants("*/*"));
        assert!(!wants("text/plain, text/html;q=0.9"));
        assert!(!wants("text/html;q=0"));
        assert!(!wants("text/html;q=x"));
        assert!(!wants_page(&HeaderMap::new()));
    }

    #[test]
    fn the_page_names_no_other_host() {
        // The one address that is only a name: SVG's own namespace.
        let texts = FILES.iter().map(|(_, _, text)| *text).chain(PAGES);
        for text in texts {
            let text = text.replace("http://www.w3.org/2000/svg", "");
            assert!(
                !text.contains("//www.") && !text.contains("https:") && !text.contains("http:")
            );
        }
    }

    #[test]
    fn every_page_links_the_others() {
        for html in PAGES {
            let nav = html.split("</nav>").next().unwrap().rsplit("<nav").next().unwrap();
            let linked = ["/", "/audio", "/images", "/docs"]
                .iter()
                .filter(|path| nav.contains(&format!("href=\"{path}\"")));
            assert!(linked.count() >= 3 && nav.contains("/docs"), "{nav}");
        }
    }

    #[test]
    fn the_policy_allows_what_the_page_uses() {
        for html in PAGES {
            assert!(
                !html.contains("style=") && !html.contains("onclick") && !html.contains("<style")
            );
            for tag in html.split("<script").skip(1) {
                assert!(tag.starts_with(" type=\"module\" src=\"/page"), "{tag}");
            }
        }
    }
}
