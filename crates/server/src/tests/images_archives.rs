//! Archives and folders of images over a socket.

use std::path::Path;

use serde_json::json;

use super::images::{Expected as _, archive, files_below, picture, served};

#[test]
fn an_archive_is_reported_line_by_line() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let pictures: Vec<Vec<u8>> = (0..5).map(picture).collect();
    let inner = archive(&[("a.jpg", &pictures[0])]);
    let zeroes = vec![0; 1 << 20];
    let body = archive(&[
        ("good/one.jpg", &pictures[0]),
        ("../../climb.jpg", &pictures[1]),
        ("/abs.jpg", &pictures[2]),
        ("twice.jpg", &pictures[0]),
        ("broken.jpg", &pictures[3][..200]),
        ("notes.txt", b"not a picture"),
        ("nested.zip", &inner),
        ("zeroes.png", &zeroes),
    ]);
    let (lines, summary) = served.zip("/v1/images/photos", &body).lines();
    assert_eq!(
        summary,
        json!({ "added": 3, "present": 1, "failed": 3, "ignored": 1 }),
        "{lines:?}"
    );
    let status = |name: &str| {
        let line = lines.iter().find(|line| line["name"] == name);
        line.unwrap_or_else(|| panic!("{name}: {lines:?}"))["status"].clone()
    };
    assert_eq!([status("climb.jpg"), status("abs.jpg")], ["added", "added"]);
    assert_eq!([status("broken.jpg"), status("nested.zip"), status("zeroes.png")], ["failed"; 3]);
    let outside = files_below(dir.path());
    assert!(!outside.iter().any(|path| path.to_string_lossy().contains("climb")), "{outside:?}");
    assert!(!Path::new("/abs.jpg").exists());
    let (_, again) = served.zip("/v1/images/photos", &body).lines();
    assert_eq!((&again["added"], &again["present"]), (&json!(0), &json!(4)));
    served.zip("/v1/images/photos", &body[..body.len() / 2]).bad(400, "zip");
    served.zip("/v1/images/photos", b"").bad(400, "zip");
    let folder = dir.path().join("folder/deep");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("four.jpg"), &pictures[4]).unwrap();
    std::fs::write(folder.join("readme.md"), b"no image").unwrap();
    std::os::unix::fs::symlink("/etc", folder.join("etc")).unwrap();
    let path = json!({ "folder": dir.path().join("folder") });
    let (lines, summary) = served.json("PUT", "/v1/images/photos", &path).lines();
    assert_eq!(summary, json!({ "added": 1, "present": 0, "failed": 0, "ignored": 1 }));
    assert_eq!(lines[0]["name"], "deep/four.jpg");
    served
        .json("PUT", "/v1/images/photos", &json!({ "folder": "relative" }))
        .bad(400, "absolute path");
    assert_eq!(served.count("photos"), 4);
}

#[test]
fn a_payload_belongs_to_all_images_of_an_archive() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let body = archive(&[("one.jpg", &picture(1)), ("two.jpg", &picture(2))]);
    let path = "/v1/images/photos?payload=%7B%22album%22%3A%22summer%22%7D";
    assert_eq!(served.zip(path, &body).lines().1["added"], 2);
    let page = served.get("/v1/images/photos").good();
    let payloads = page["images"].as_array().unwrap().iter().map(|image| image["payload"].clone());
    assert_eq!(
        payloads.collect::<Vec<_>>(),
        [json!({"album": "summer"}), json!({"album": "summer"})]
    );
    served.zip("/v1/images/photos?name=one.jpg", &body).bad(400, "name=");
    served.zip("/v1/images/photos?payload=1", &body).bad(400, "payload=");
    served.zip("/v1/images/photos?background=x", &body).bad(400, "background");
}
