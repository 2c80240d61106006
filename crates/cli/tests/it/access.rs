//! Encryption and keys, as an operator sets them up: files, flags, and the client commands.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::program::{check_error, command, run};
use crate::serve::{Server, publish};

/// Writes a new authority (`ca.pem`) and a certificate of this machine from it.
pub(crate) fn certificates(dir: &Path) {
    let authority = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    std::fs::write(dir.join("ca.pem"), params.self_signed(&authority).unwrap().pem()).unwrap();
    let issuer = Issuer::new(params, authority);
    let key = KeyPair::generate().unwrap();
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let cert = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
    // A pair that does not match is refused, so the order does not matter.
    std::fs::write(dir.join("key.pem"), key.serialize_pem()).unwrap();
    std::fs::write(dir.join("cert.pem"), cert.pem()).unwrap();
}

/// Makes a key, whose lines go to `keys.toml` in `dir`.
fn new_key(dir: &Path, arguments: &[&str]) -> String {
    let made = run(&[&["keys", "new"], arguments].concat());
    assert_eq!(made.code, 0, "{made:?}");
    let file = dir.join("keys.toml");
    let before = std::fs::read_to_string(&file).unwrap_or_default();
    std::fs::write(file, before + &made.stdout).unwrap();
    let key = made.stderr.trim().rsplit(' ').next().unwrap().to_owned();
    assert!(key.starts_with("mp_") && !made.stdout.contains(&key), "{made:?}");
    key
}

#[test]
fn a_server_uses_tls_and_requires_keys() {
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), 0.5);
    certificates(dir.path());
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (models, log) = (path("models"), dir.path().join("log"));
    let key = new_key(dir.path(), &["--role", "admin", "--name", "root"]);
    let server = Server::start_logged(
        &[
            &models,
            "--tls-cert",
            &path("cert.pem"),
            "--tls-key",
            &path("key.pem"),
            "--keys",
            &path("keys.toml"),
        ],
        std::fs::File::create(&log).unwrap().into(),
    );
    assert!(server.url.starts_with("https://") && server.grpc.starts_with("grpcs://"));
    let ask = |ca: &str, key: &str| {
        let arguments = ["models", "status", "half_plus_two", "--url", &server.url, "--ca", ca];
        let output = command(&arguments).env("MILLPOND_API_KEY", key).output().unwrap();
        crate::program::Run::from(output)
    };
    let until = |ca: &str, key: &str, code: i32| {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            let run = ask(ca, key);
            if run.code == code {
                return run;
            }
            assert!(std::time::Instant::now() < deadline, "{run:?}");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    };
    until(&path("ca.pem"), &key, 0);
    let refused = ask(&path("ca.pem"), "mp_wrong");
    assert!(refused.stderr.contains("is not a key of this server"), "{refused:?}");
    assert!(refused.stderr.contains("set MILLPOND_API_KEY"), "{refused:?}");

    // A new key and a new certificate take effect without a restart.
    let reader = new_key(dir.path(), &["--role", "read", "--models", "half*"]);
    until(&path("ca.pem"), &reader, 0);
    std::fs::copy(path("ca.pem"), path("old.pem")).unwrap();
    certificates(dir.path());
    until(&path("ca.pem"), &reader, 0);
    let unknown = ask(&path("old.pem"), &reader);
    assert!(
        unknown.stderr.contains("is not trusted") && unknown.stderr.contains("--ca"),
        "{unknown:?}"
    );

    std::fs::write(path("key.pem"), "broken").unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !std::fs::read_to_string(&log).unwrap().contains("cannot be used and stay as they were") {
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(ask(&path("ca.pem"), &reader).code, 0, "the certificate before stays");
    let plain = server.url.replace("https://", "http://");
    let plain = run(&["models", "ls", "--url", &plain]);
    assert!(plain.stderr.contains("use https://"), "{plain:?}");
    server.signal("HUP");
    assert_eq!(ask(&path("ca.pem"), &reader).code, 0, "a hangup does not end it");
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn load_and_verify_send_a_key() {
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), 0.5);
    std::fs::create_dir(dir.path().join("first")).unwrap();
    let requests = crate::verify::recorded(dir.path());
    let key = new_key(dir.path(), &["--role", "infer"]);
    let (models, keys) = (dir.path().join("models"), dir.path().join("keys.toml"));
    let arguments = [models.to_str().unwrap(), "--keys", keys.to_str().unwrap()];
    let server = Server::start_logged(&arguments, std::process::Stdio::null());

    let load = ["bench", "load", "--url", &server.grpc, "--model", "half_plus_two", "--clients"];
    let load = [&load[..], &["1", "--duration", "1s", "--warm-up", "0s"]].concat();
    let with_key = [&load[..], &["--api-key", &key]].concat();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while run(&with_key).code != 0 {
        assert!(std::time::Instant::now() < deadline, "{:?}", run(&with_key));
    }
    let by_variable = command(&load).env("MILLPOND_API_KEY", &key).output().unwrap();
    assert!(by_variable.status.success(), "{by_variable:?}");
    let refused = run(&load);
    assert!(refused.code != 0 && refused.stderr.contains("key"), "{refused:?}");

    let address = server.grpc.trim_start_matches("grpc://");
    let verify = ["verify", "--server", address, "--against", address, "--requests"];
    let verify = [&verify[..], &[requests.to_str().unwrap(), "--duration", "0s"]].concat();
    let keys = ["--api-key", &key, "--against-api-key", &key];
    let equal = run(&[&verify[..], &keys].concat());
    assert!(equal.code == 0 && equal.stdout.starts_with("3 requests, 3 compared"), "{equal:?}");
    let refused = run(&[&verify[..], &keys[..2]].concat());
    assert!(!refused.stdout.contains("3 compared"), "{refused:?}");
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn client_commands_show_a_certificate() {
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), 0.5);
    certificates(dir.path());
    let path = |name: &str| dir.path().join(name).display().to_string();
    let read = |name: &str| std::fs::read_to_string(path(name)).unwrap();
    std::fs::write(path("client.pem"), read("cert.pem") + &read("key.pem")).unwrap();
    let (cert, key, ca) = (path("cert.pem"), path("key.pem"), path("ca.pem"));
    let flags = ["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca];
    let server = Server::start_logged(
        &[&[path("models").as_str()][..], &flags].concat(),
        std::process::Stdio::null(),
    );
    let shown = ["models", "ls", "--ca", &ca, "--client-cert", &path("client.pem")];
    assert_eq!(server.client(&shown).code, 0, "certificate and key in one file");
    let bare = [&shown[..4], &["--cert", &cert]].concat();
    assert_eq!(server.client(&[&bare[..], &["--key", &key]].concat()).code, 0);
    assert_eq!(server.client(&shown[..4]).code, 1);
    let address = ["--url", "https://127.0.0.1:1"];
    check_error(&[&bare[..], &address].concat(), 2, "no private key");
    let plain = ["--url", "http://127.0.0.1:1"];
    check_error(&[&shown[..], &plain].concat(), 2, "--ca has no effect without TLS");
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn errors_of_settings_have_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let models = dir.path().display().to_string();
    std::fs::write(dir.path().join("keys.toml"), "[[keys]]\nname = \"a\"\n").unwrap();
    let keys = format!("{models}/keys.toml");
    let wrong = |flags: &[&str], wanted: &str| {
        check_error(
            &[&["serve", &models, "--http-port", "0", "--grpc-port", "0"], flags].concat(),
            2,
            wanted,
        );
    };
    wrong(&["--tls-cert", "a.pem"], "--tls-cert and --tls-key need each other");
    wrong(&["--tls-client-ca", "a.pem"], "--tls-client-ca needs --tls-cert");
    wrong(&["--keys", &keys], "missing field `hash`");
    let missing = format!("{models}/missing");
    let tls = ["--tls-cert", missing.as_str(), "--tls-key", missing.as_str()];
    for (flags, wanted) in [
        (&["--keys", missing.as_str()][..], format!("--keys: {missing}: No such file")),
        (&tls[..], format!("TLS cannot be set up: {missing}: No such file")),
    ] {
        wrong(flags, &wanted);
    }
    check_error(
        &["models", "ls", "--url", "https://127.0.0.1:1", "--ca", &keys],
        2,
        "no certificate",
    );
    let server = {
        publish(dir.path(), 0.5);
        Server::start_logged(&[&format!("{models}/models")], std::process::Stdio::null())
    };
    let tls = server.url.replace("http://", "https://");
    check_error(&["models", "ls", "--url", &tls], 1, "does not speak TLS");
}
