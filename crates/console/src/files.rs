//! The pages' files, built into the binary. They load nothing from other hosts.

use std::sync::LazyLock;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use transport::Reply;

use crate::shell::{self, PageSource};

/// Content security policy: scripts, styles, images and requests of this server only, and no frame
/// around the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Policy of the page for audio, which also plays the user's file.
const AUDIO_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                            img-src 'self'; media-src blob:; base-uri 'none'; form-action 'none'; \
                            frame-ancestors 'none'";

/// Policy of the pages for images and the API, which also show files that they receive or send.
const IMAGES_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                             img-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// All pages, in the order of the navigation. The first is the overview.
const PAGES: [PageSource; 7] = [
    PageSource {
        path: "/",
        name: "Models",
        tab: Some("Models"),
        styles: &["/page-menu.css", "/page-models.css"],
        script: "/page.js",
        skip: "models",
        policy: POLICY,
        body: include_str!("page.html"),
    },
    PageSource {
        path: "/try",
        name: "Try a model",
        tab: Some("Try"),
        styles: &["/page-try.css"],
        script: "/page-try.js",
        skip: "inputs-title",
        policy: POLICY,
        body: include_str!("try.html"),
    },
    PageSource {
        path: "/images",
        name: "Images",
        tab: Some("Images"),
        styles: &["/page-menu.css", "/page-images.css"],
        script: "/page-images.js",
        skip: "find",
        policy: IMAGES_POLICY,
        body: include_str!("images.html"),
    },
    PageSource {
        path: "/vectors",
        name: "Vectors",
        tab: Some("Vectors"),
        styles: &["/page-menu.css", "/page-vectors.css"],
        script: "/page-vectors.js",
        skip: "content",
        policy: POLICY,
        body: include_str!("vectors.html"),
    },
    PageSource {
        path: "/nodes",
        name: "Nodes of the cluster",
        tab: None,
        styles: &[],
        script: "/page-nodes.js",
        skip: "content",
        policy: POLICY,
        body: include_str!("nodes.html"),
    },
    PageSource {
        path: "/audio",
        name: "Audio",
        tab: Some("Audio"),
        styles: &["/page-audio.css"],
        script: "/page-audio.js",
        skip: "recording",
        policy: AUDIO_POLICY,
        body: include_str!("audio.html"),
    },
    PageSource {
        path: "/docs",
        name: "API",
        tab: Some("API"),
        styles: &["/page-docs.css"],
        script: "/page-docs.js",
        skip: "calls",
        policy: IMAGES_POLICY,
        body: include_str!("docs.html"),
    },
];

const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Path, content type and contents of each file.
const FILES: &[(&str, &str, &str)] = &[
    ("/page.css", CSS, include_str!("page.css")),
    ("/page-api.js", JS, include_str!("page-api.js")),
    ("/page-audio.css", CSS, include_str!("page-audio.css")),
    ("/page-audio.js", JS, include_str!("page-audio.js")),
    ("/page-audio-wave.js", JS, include_str!("page-audio-wave.js")),
    ("/page-docs.css", CSS, include_str!("page-docs.css")),
    ("/page-docs.js", JS, include_str!("page-docs.js")),
    ("/page-docs-call.js", JS, include_str!("page-docs-call.js")),
    ("/page-images.css", CSS, include_str!("page-images.css")),
    ("/page-images.js", JS, include_str!("page-images.js")),
    ("/page-images-add.js", JS, include_str!("page-images-add.js")),
    ("/page-images-api.js", JS, include_str!("page-images-api.js")),
    ("/page-images-duplicates.js", JS, include_str!("page-images-duplicates.js")),
    ("/page-images-filter.js", JS, include_str!("page-images-filter.js")),
    ("/page-images-match.js", JS, include_str!("page-images-match.js")),
    ("/page-images-search.js", JS, include_str!("page-images-search.js")),
    ("/page-menu.css", CSS, include_str!("page-menu.css")),
    ("/page-menu.js", JS, include_str!("page-menu.js")),
    ("/page-nodes.js", JS, include_str!("page-nodes.js")),
    ("/page-login.css", CSS, include_str!("page-login.css")),
    ("/page-session.js", JS, include_str!("page-session.js")),
    ("/page-models.css", CSS, include_str!("page-models.css")),
    ("/page.js", JS, include_str!("page.js")),
    ("/page-actions.js", JS, include_str!("page-actions.js")),
    ("/page-batching.js", JS, include_str!("page-batching.js")),
    ("/page-chart.js", JS, include_str!("page-chart.js")),
    ("/page-events.js", JS, include_str!("page-events.js")),
    ("/page-machine.js", JS, include_str!("page-machine.js")),
    ("/page-model.js", JS, include_str!("page-model.js")),
    ("/page-more.js", JS, include_str!("page-more.js")),
    ("/page-overview.js", JS, include_str!("page-overview.js")),
    ("/page-rollout.js", JS, include_str!("page-rollout.js")),
    ("/page-dom.js", JS, include_str!("page-dom.js")),
    ("/page-shell.js", JS, include_str!("page-shell.js")),
    ("/page-try-input.js", JS, include_str!("page-try-input.js")),
    ("/page-try-media.js", JS, include_str!("page-try-media.js")),
    ("/page-try-outputs.js", JS, include_str!("page-try-outputs.js")),
    ("/page-try-snippets.js", JS, include_str!("page-try-snippets.js")),
    ("/page-try-values.js", JS, include_str!("page-try-values.js")),
    ("/page-try.css", CSS, include_str!("page-try.css")),
    ("/page-try.js", JS, include_str!("page-try.js")),
    ("/page-vectors-api.js", JS, include_str!("page-vectors-api.js")),
    ("/page-vectors-filter.js", JS, include_str!("page-vectors-filter.js")),
    ("/page-vectors-health.js", JS, include_str!("page-vectors-health.js")),
    ("/page-vectors-one.js", JS, include_str!("page-vectors-one.js")),
    ("/page-vectors-point.js", JS, include_str!("page-vectors-point.js")),
    ("/page-vectors.css", CSS, include_str!("page-vectors.css")),
    ("/page-vectors.js", JS, include_str!("page-vectors.js")),
    ("/page-icon.svg", SVG, include_str!("page-icon.svg")),
    // Browsers request this path if a response, such as JSON, names no icon.
    ("/favicon.ico", SVG, include_str!("page-icon.svg")),
];

/// Rendered pages, in the order of [`PAGES`].
static RENDERED: LazyLock<Vec<Bytes>> =
    LazyLock::new(|| PAGES.iter().map(|page| shell::render(page, &PAGES).into()).collect());

/// Returns the paths of all pages.
pub(crate) fn paths() -> Vec<&'static str> {
    PAGES.iter().map(|page| page.path).collect()
}

/// Returns the overview.
pub fn page() -> Reply {
    reply(0).with_header(header::VARY, HeaderValue::from_static("accept"))
}

fn reply(index: usize) -> Reply {
    guarded(Reply::body("text/html; charset=utf-8", RENDERED[index].clone()), PAGES[index].policy)
}

/// Returns the routes of the pages besides the overview, and of the files of all pages.
pub fn routes() -> Router {
    let pages = PAGES.iter().enumerate().skip(1);
    let router = pages.fold(Router::new(), |router, (index, page)| {
        router.route(page.path, get(move || async move { reply(index) }))
    });
    FILES.iter().fold(router, |router, &(path, content_type, text)| {
        router.route(
            path,
            get(move || async move { guarded(Reply::body(content_type, text), POLICY) }),
        )
    })
}

/// Adds the headers that protect a page. `policy` is its content security policy.
pub(crate) fn guarded(reply: Reply, policy: &'static str) -> Reply {
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

/// Returns true if a client prefers the page to text. It then accepts `text/html` by name, at least
/// as much as `text/plain`. A client that accepts anything (curl) gets the text.
pub fn wants_page(headers: &HeaderMap) -> bool {
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

    fn pages() -> Vec<String> {
        PAGES.iter().map(|page| shell::render(page, &PAGES)).collect()
    }

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
        let texts = FILES.iter().map(|(_, _, text)| (*text).to_owned()).chain(pages());
        for text in texts {
            let text = text.replace("http://www.w3.org/2000/svg", "");
            assert!(
                !text.contains("//www.") && !text.contains("https:") && !text.contains("http:")
            );
        }
    }

    #[test]
    fn every_page_links_the_others() {
        for (page, html) in PAGES.iter().zip(pages()) {
            let nav = html.split("</nav>").next().unwrap().rsplit("<nav").next().unwrap();
            let linked = PAGES.iter().filter(|other| other.tab.is_some());
            assert!(linked.clone().count() >= 4);
            assert!(
                linked.clone().all(|to| nav.contains(&format!("href=\"{}\"", to.path))),
                "{nav}"
            );
            assert_eq!(nav.matches("aria-current").count(), usize::from(page.tab.is_some()));
        }
    }

    #[test]
    fn every_page_has_its_files_and_targets() {
        let paths: Vec<&str> = FILES.iter().map(|(path, ..)| *path).collect();
        for page in &PAGES {
            assert!(paths.contains(&page.script), "{}", page.script);
            assert!(page.styles.iter().all(|style| paths.contains(style)), "{:?}", page.styles);
            assert!(page.body.contains(&format!("id=\"{}\"", page.skip)), "{}", page.skip);
        }
    }

    #[test]
    fn the_policy_allows_what_the_page_uses() {
        for html in pages() {
            assert!(
                !html.contains("style=") && !html.contains("onclick") && !html.contains("<style")
            );
            for tag in html.split("<script").skip(1) {
                assert!(tag.starts_with(" type=\"module\" src=\"/page"), "{tag}");
            }
        }
    }
}
