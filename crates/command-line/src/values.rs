//! Value types shared by flags and settings file: both parse them from the same text.

use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use base::units::{parse_bytes, parse_duration};
use base::{Error, Result};
use serde::de::{Deserialize, Deserializer, Visitor};

/// Maximum number of versions in a policy.
const VERSIONS_MAX: usize = 1024;

/// A number of bytes: "8GiB", "512MiB", "1000".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSize(pub u64);

/// Bytes per second: "800MB", "800MB/s", or "unlimited", which is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRate(pub u64);

/// Address to listen on: an IP address, or a host name that resolves to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host(pub IpAddr);

/// Permissions of a file in octal digits: "0600".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMode(pub u32);

/// A duration: "250ms", "2s", "1m", "2" (seconds).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeSpan(pub Duration);

/// Version policy of a model: "latest:N", "all" or "1,2,3".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Versions {
    /// The given number of highest versions.
    Latest(usize),
    /// All versions.
    All,
    /// These versions.
    Specific(BTreeSet<u64>),
}

/// A model to serve, or a directory of models: "DIR" or "NAME=DIR".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSource {
    /// Name of the model; `None` for a directory without `NAME=`.
    pub name: Option<String>,
    /// The directory.
    pub dir: PathBuf,
}

impl FromStr for ByteSize {
    type Err = Error;

    fn from_str(text: &str) -> Result<ByteSize> {
        parse_bytes(text).map(ByteSize)
    }
}

impl FromStr for ByteRate {
    type Err = Error;

    fn from_str(text: &str) -> Result<ByteRate> {
        if text == "unlimited" {
            return Ok(ByteRate(0));
        }
        parse_bytes(text.strip_suffix("/s").unwrap_or(text)).map(ByteRate)
    }
}

impl FromStr for Host {
    type Err = Error;

    /// Resolves a name. IPv4 addresses take precedence over IPv6 ones, since clients try them
    /// first.
    fn from_str(text: &str) -> Result<Host> {
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        if let Ok(address) = bare.parse() {
            return Ok(Host(address));
        }
        let wrong = |why: &str| {
            Error::invalid(format!(
                "\"{text}\" is neither an IP address nor a host name of this machine{why}; use 127.0.0.1, 0.0.0.0, :: or localhost"
            ))
        };
        let found = (text, 0).to_socket_addrs().map_err(|error| wrong(&format!(" ({error})")))?;
        let addresses: Vec<IpAddr> = found.map(|found| found.ip()).collect();
        let v4 = addresses.iter().find(|address| address.is_ipv4());
        v4.or(addresses.first()).copied().map(Host).ok_or_else(|| wrong(""))
    }
}

impl FromStr for FileMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<FileMode> {
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
        mode.filter(|mode| mode & 0o600 == 0o600).map(FileMode).ok_or_else(|| {
            Error::invalid(format!(
                "\"{text}\" is not a mode of a socket; use 0600 (this user), 0660 (also its group) or 0666 (all users)"
            ))
        })
    }
}

impl FromStr for TimeSpan {
    type Err = Error;

    fn from_str(text: &str) -> Result<TimeSpan> {
        parse_duration(text).map(TimeSpan)
    }
}

impl FromStr for Versions {
    type Err = Error;

    fn from_str(text: &str) -> Result<Versions> {
        let wrong = || {
            Error::invalid(format!(
                "\"{text}\" is not a version policy; use latest, latest:N, all, or numbers as in 3,5"
            ))
        };
        match text {
            "all" => return Ok(Versions::All),
            "latest" => return Ok(Versions::Latest(1)),
            _ => {}
        }
        if let Some(count) = text.strip_prefix("latest:") {
            let count: usize = count.parse().map_err(|_| wrong())?;
            if !(1..=VERSIONS_MAX).contains(&count) {
                return Err(Error::invalid(format!(
                    "\"{text}\": latest:N takes 1 to {VERSIONS_MAX}"
                )));
            }
            return Ok(Versions::Latest(count));
        }
        let numbers: BTreeSet<u64> = text
            .split(',')
            .map(|number| number.trim().parse().map_err(|_| wrong()))
            .collect::<Result<_>>()?;
        if numbers.len() > VERSIONS_MAX {
            return Err(Error::invalid(format!("more than {VERSIONS_MAX} versions of one model")));
        }
        Ok(Versions::Specific(numbers))
    }
}

impl FromStr for ModelSource {
    type Err = Error;

    fn from_str(text: &str) -> Result<ModelSource> {
        match text.split_once('=') {
            // A path may contain "=", so only a valid name counts as one.
            Some((name, dir)) if !name.contains('/') => {
                check_name(name)?;
                if dir.is_empty() {
                    return Err(Error::invalid(format!(
                        "\"{text}\" names no directory; write NAME=DIR"
                    )));
                }
                Ok(ModelSource { name: Some(name.to_owned()), dir: dir.into() })
            }
            _ => Ok(ModelSource { name: None, dir: text.into() }),
        }
    }
}

/// Parses a port.
///
/// # Errors
/// Returns a message if it is not a number from 0 to 65535.
pub fn port(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| "a port is a number from 0 to 65535".to_owned())
}

/// Parses a number that is not negative. Infinity and NaN are no numbers of JSON. A request would
/// have null instead, which means an absent setting.
///
/// # Errors
/// Returns a message if it is not such a number.
pub fn finite(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    let number = number.filter(|number| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "it must be a number, 0 or more".to_owned())
}

/// Checks that `name` is valid in a URL path and as a directory name.
///
/// # Errors
/// Returns `InvalidArgument` if it is empty, starts with a dot, or holds anything but letters,
/// digits, `_`, `-`, `.`.
pub fn check_name(name: &str) -> Result<()> {
    let allowed = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.starts_with('.') || !name.chars().all(allowed) {
        return Err(Error::invalid(format!(
            "\"{name}\" is not a model name; use letters, digits, \"_\", \"-\" and \".\", not starting with \".\""
        )));
    }
    Ok(())
}

/// Refuses a path with a directory `~`, which the program would create. A shell replaces `~` at the
/// start of a word only, as in `--to ~/models`, and no program replaces it in a settings file.
///
/// # Errors
/// Returns `InvalidArgument` with `flag`.
pub fn check_home(flag: &str, path: &Path) -> Result<()> {
    if path.components().any(|part| part.as_os_str() == "~") {
        return Err(Error::invalid(format!(
            "{flag} {}: ~ does not mean the home directory here; write its path",
            path.display()
        )));
    }
    Ok(())
}

macro_rules! deserialize_from_text {
    ($($name:ident: $expected:literal),* $(,)?) => { $(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<$name, D::Error> {
                deserializer.deserialize_any(TextOrNumber { expected: $expected, target: PhantomData })
            }
        }
    )* };
}
deserialize_from_text! {
    ByteSize: "a size such as \"8GiB\"",
    ByteRate: "bytes a second such as \"800MB\"",
    Host: "an address such as \"127.0.0.1\"",
    FileMode: "a mode such as \"0600\"",
    TimeSpan: "a time such as \"250ms\"",
    Versions: "a version policy such as \"latest:2\"",
}

/// Accepts 5 in a settings file for the text "5" of a flag.
struct TextOrNumber<T> {
    expected: &'static str,
    target: PhantomData<T>,
}

impl<T: FromStr<Err = Error>> Visitor<'_> for TextOrNumber<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> std::result::Result<T, E> {
        text.parse().map_err(|error: Error| E::custom(error.message()))
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> std::result::Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> std::result::Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> std::result::Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_parsed_or_refused() {
        assert_eq!("latest".parse(), Ok(Versions::Latest(1)));
        assert_eq!("latest:3".parse(), Ok(Versions::Latest(3)));
        assert_eq!("all".parse(), Ok(Versions::All));
        assert_eq!("7, 2,2".parse(), Ok(Versions::Specific(BTreeSet::from([2, 7]))));
        for wrong in ["", "latest:0", "latest:x", "1,,2", "-1", "newest"] {
            assert!(wrong.parse::<Versions>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn sources_are_parsed_or_refused() {
        let source = |name: Option<&str>, dir: &str| {
            Ok(ModelSource { name: name.map(str::to_owned), dir: dir.into() })
        };
        assert_eq!("models".parse(), source(None, "models"));
        assert_eq!("ctr=/data/ctr".parse(), source(Some("ctr"), "/data/ctr"));
        assert_eq!("ctr=/data/a=b".parse(), source(Some("ctr"), "/data/a=b"));
        assert_eq!("./a=b".parse(), source(None, "./a=b"));
        assert!("ctr=".parse::<ModelSource>().is_err());
        assert!("=dir".parse::<ModelSource>().is_err());
        assert!("a b=dir".parse::<ModelSource>().is_err());
    }

    #[test]
    fn hosts_are_addresses_or_names() {
        let host = |text: &str| text.parse::<Host>().map(|Host(address)| address.to_string());
        assert_eq!(host("0.0.0.0"), Ok("0.0.0.0".to_owned()));
        assert_eq!(host("::"), Ok("::".to_owned()));
        assert_eq!(host("::1"), Ok("::1".to_owned()));
        assert_eq!(host("[::1]"), Ok("::1".to_owned()));
        assert!(host("localhost").unwrap().parse::<IpAddr>().unwrap().is_loopback());
        let error = host("no such host").unwrap_err();
        assert!(
            error.message().contains("no such host") && error.message().contains("localhost"),
            "{error}"
        );
    }

    #[test]
    fn modes_are_parsed_or_refused() {
        assert_eq!("0660".parse(), Ok(FileMode(0o660)));
        assert_eq!("600".parse(), Ok(FileMode(0o600)));
        for wrong in ["0060", "1777", "rw", "0800", ""] {
            assert!(wrong.parse::<FileMode>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_directory_is_not_the_home_of_a_shell() {
        for wrong in ["~/models", "/etc/millpond/~/models", "~"] {
            let error = check_home("--to", Path::new(wrong)).unwrap_err();
            assert!(error.message().starts_with(&format!("--to {wrong}: ")), "{error}");
        }
        assert_eq!(check_home("--to", Path::new("/home/~me/models~")), Ok(()));
    }

    #[test]
    fn numbers_of_requests_are_finite() {
        assert_eq!((finite("0"), finite("1.5")), (Ok(0.0), Ok(1.5)));
        for wrong in ["nan", "inf", "1e400", "-1", "", "x"] {
            assert!(finite(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_are_parsed_or_refused() {
        assert_eq!("800MB/s".parse(), Ok(ByteRate(800_000_000)));
        assert_eq!("unlimited".parse(), Ok(ByteRate(0)));
        assert!("fast".parse::<ByteRate>().is_err());
    }
}
