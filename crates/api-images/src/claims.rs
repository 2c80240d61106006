//! Ids that one thread at a time works on. Bulk work claims the images that it adds, so that a file
//! that is sent twice is added once. Each write of points claims their ids. So features without an
//! image do not replace an original that is added meanwhile.

use std::collections::HashSet;

use parking_lot::{Condvar, Mutex};

#[derive(Default)]
pub(crate) struct Claims {
    taken: Mutex<HashSet<[u8; 16]>>,
    changed: Condvar,
}

/// Ids that only the caller works on, until this is dropped.
pub(crate) struct Claim<'a> {
    claims: &'a Claims,
    ids: HashSet<[u8; 16]>,
}

impl Claims {
    /// Waits until all of `ids` are free, and claims them at once. A waiting thread holds no ids,
    /// so there is no deadlock.
    pub(crate) fn take(&self, ids: &[[u8; 16]]) -> Claim<'_> {
        let ids: HashSet<[u8; 16]> = ids.iter().copied().collect();
        let mut taken = self.taken.lock();
        self.changed.wait_while(&mut taken, |taken| !taken.is_disjoint(&ids));
        taken.extend(&ids);
        drop(taken);
        Claim { claims: self, ids }
    }

    /// Claims all of `ids` at once, or returns `None` if another caller has claimed one.
    pub(crate) fn try_take(&self, ids: &[[u8; 16]]) -> Option<Claim<'_>> {
        let ids: HashSet<[u8; 16]> = ids.iter().copied().collect();
        let mut taken = self.taken.lock();
        if !taken.is_disjoint(&ids) {
            return None;
        }
        taken.extend(&ids);
        drop(taken);
        Some(Claim { claims: self, ids })
    }

    /// Returns the number of claimed ids.
    pub(crate) fn claimed(&self) -> usize {
        self.taken.lock().len()
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut taken = self.claims.taken.lock();
        taken.retain(|id| !self.ids.contains(id));
        drop(taken);
        self.claims.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_claimed_id_is_not_claimed_again() {
        let claims = Claims::default();
        let claim = claims.take(&[[1; 16], [2; 16]]);
        for _ in 0..2 {
            assert!(claims.try_take(&[[2; 16], [3; 16]]).is_none());
        }
        assert!(claims.try_take(&[[3; 16]]).is_some());
        drop(claim);
        assert!(claims.try_take(&[[2; 16], [3; 16]]).is_some());
    }

    #[test]
    fn an_id_has_one_claim() {
        let (claims, inside) = (Claims::default(), [AtomicU32::new(0), AtomicU32::new(0)]);
        std::thread::scope(|scope| {
            for order in [[0, 1], [1, 0], [0, 0], [1, 1]] {
                let (claims, inside) = (&claims, &inside);
                scope.spawn(move || {
                    for _ in 0..500 {
                        let _claim = claims.take(&order.map(|which| [which; 16]));
                        let own: HashSet<u8> = order.into_iter().collect();
                        for &which in &own {
                            assert_eq!(
                                inside[usize::from(which)].fetch_add(1, Ordering::SeqCst),
                                0
                            );
                        }
                        for &which in &own {
                            inside[usize::from(which)].fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                });
            }
        });
        assert!(claims.taken.lock().is_empty());
    }
}
