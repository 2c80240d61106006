//! Failed attempts to show a key, limited by the address of the client.
//!
//! A right key is always accepted. So wrong keys lock no other client out that has the same
//! address, for example behind a proxy. The limit lets an operator notice guesses, and tells
//! clients with an old key to wait. It prevents no guess: only long random keys do.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::peer::Peer;

/// Maximum failed attempts of an address at once. It regains one each [`ATTEMPT_INTERVAL`].
const ATTEMPTS_MAX: u32 = 100;
/// Time after which an address may make one failed attempt more.
const ATTEMPT_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum addresses in the table. A further one replaces the address with the fewest attempts.
const ADDRESSES_MAX: usize = 4096;
/// Bits of an IPv6 address within a network. A client can use all addresses of its network.
const HOST_BITS_V6: u32 = 64;

/// Failed attempts by address, as the times at which they do not count any more. `None` stands for
/// all clients of Unix sockets.
#[derive(Debug, Default)]
pub(super) struct FailedAttempts(Mutex<HashMap<Option<IpAddr>, Instant>>);

impl FailedAttempts {
    /// Counts a failed attempt of `peer`.
    ///
    /// # Errors
    /// The time to wait, if the address has made too many. The attempt does not count then.
    pub(super) fn count(&self, peer: Option<Peer>) -> Result<(), Duration> {
        self.count_at(address(peer), Instant::now())
    }

    /// Counts a failed attempt. Returns the time to wait if the address has made too many.
    fn count_at(&self, address: Option<IpAddr>, now: Instant) -> Result<(), Duration> {
        let mut ends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ends.len() >= ADDRESSES_MAX && !ends.contains_key(&address) {
            let first = ends.iter().min_by_key(|(_, end)| **end).map(|(address, _)| *address);
            first.and_then(|first| ends.remove(&first));
        }
        let end = ends.entry(address).or_insert(now);
        let later = (*end).max(now) + ATTEMPT_INTERVAL;
        let latest = now + ATTEMPT_INTERVAL * ATTEMPTS_MAX;
        if later > latest {
            return Err(later.saturating_duration_since(latest));
        }
        *end = later;
        Ok(())
    }
}

/// Returns the address that counts for `peer`.
fn address(peer: Option<Peer>) -> Option<IpAddr> {
    let Some(Peer::Tcp(address)) = peer else { return None };
    Some(match address.ip().to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> HOST_BITS_V6 << HOST_BITS_V6).into(),
        v4 @ IpAddr::V4(_) => v4,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn tcp(text: &str) -> Option<IpAddr> {
        address(Some(Peer::Tcp(text.parse().unwrap())))
    }

    #[test]
    fn an_address_regains_attempts_with_time() {
        let attempts = FailedAttempts::default();
        let start = Instant::now();
        let one = tcp("192.0.2.1:1");
        assert!((0..ATTEMPTS_MAX).all(|_| attempts.count_at(one, start).is_ok()));
        for _ in 0..3 {
            assert_eq!(attempts.count_at(one, start), Err(ATTEMPT_INTERVAL));
        }
        assert!(attempts.count_at(tcp("192.0.2.2:1"), start).is_ok());
        assert!(attempts.count_at(None, start).is_ok());
        assert!(attempts.count_at(one, start + ATTEMPT_INTERVAL).is_ok());
        assert!(attempts.count_at(one, start + ATTEMPT_INTERVAL).is_err());
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_address() {
        assert_eq!(tcp("[2001:db8::1]:1"), tcp("[2001:db8::ffff:1]:2"));
        assert_ne!(tcp("[2001:db8::1]:1"), tcp("[2001:db8:0:1::1]:1"));
        assert_eq!(tcp("[::ffff:192.0.2.1]:1"), tcp("192.0.2.1:2"));
        assert_eq!(address(Some(Peer::Unix(Some(7)))), None);
    }

    #[test]
    fn the_table_is_bounded() {
        let attempts = FailedAttempts::default();
        let now = Instant::now();
        let busy = tcp("192.0.2.1:1");
        for _ in 0..ATTEMPTS_MAX {
            attempts.count_at(busy, now).unwrap();
        }
        for number in 0..ADDRESSES_MAX as u32 + 100 {
            attempts.count_at(Some(IpAddr::V4((0x0a00_0000 + number).into())), now).unwrap();
        }
        assert_eq!(attempts.0.lock().unwrap().len(), ADDRESSES_MAX);
        assert!(attempts.count_at(busy, now).is_err(), "it has the most attempts");
    }
}
