//! Processor time that one caller may use, as a quota for each minute.
//!
//! A caller is charged after its work, since the cost is not known before. Work that has begun
//! counts at the average cost of the caller's work so far. So many requests at once cannot exceed
//! the quota by much. Code that works for a caller finds the account by [`CpuAccount::current`].

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::thread::cpu_time;

/// Seconds of refill that an account holds at most. A longer burst of one caller would delay the
/// others.
const BURST_SECONDS_MAX: f64 = 5.0;
/// Weight of the last work in the average cost.
const COST_WEIGHT: f64 = 0.125;
/// Shortest advice to wait.
const WAIT_MIN: Duration = Duration::from_millis(10);
/// Longest advice to wait.
const WAIT_MAX: Duration = Duration::from_secs(3600);

thread_local! {
    static CURRENT: RefCell<Option<Arc<CpuAccount>>> = const { RefCell::new(None) };
}

/// Figures of an account.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuAccountUsage {
    /// Processor time that was charged.
    pub used: Duration,
    /// Work that was refused.
    pub refused: u64,
}

/// The processor time of one caller, and its quota.
#[derive(Debug)]
pub struct CpuAccount {
    /// Seconds of refill each second. `None` means no quota.
    rate: Option<f64>,
    state: Mutex<CpuBalance>,
}

#[derive(Clone, Copy, Debug)]
struct CpuBalance {
    /// Seconds left, negative after expensive work.
    seconds: f64,
    /// Time up to which the quota was added.
    filled: Instant,
    /// Average cost of the work so far.
    cost: f64,
    /// Number of works that were begun and have not ended.
    in_flight: u32,
    usage: CpuAccountUsage,
}

impl CpuBalance {
    fn fill(&mut self, rate: f64, now: Instant) {
        let elapsed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.seconds = (self.seconds + elapsed * rate).min(rate * BURST_SECONDS_MAX);
        self.filled = self.filled.max(now);
    }

    /// Returns the seconds left once the work in flight has been charged.
    fn expected(&self) -> f64 {
        self.seconds - f64::from(self.in_flight) * self.cost
    }
}

impl CpuAccount {
    /// Creates an account of `per_minute` seconds of processor time a minute. `None` means no
    /// quota.
    pub fn new(per_minute: Option<f64>) -> Arc<CpuAccount> {
        let rate = per_minute.map(|seconds| seconds / 60.0);
        let state = CpuBalance {
            seconds: rate.unwrap_or_default() * BURST_SECONDS_MAX,
            filled: Instant::now(),
            cost: 0.0,
            in_flight: 0,
            usage: CpuAccountUsage::default(),
        };
        Arc::new(CpuAccount { rate, state: Mutex::new(state) })
    }

    /// Returns the account of the caller that the current task or thread works for.
    pub fn current() -> Option<Arc<CpuAccount>> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Runs `work` for the caller of `account`.
    pub fn scope<T>(account: Option<Arc<CpuAccount>>, work: impl FnOnce() -> T) -> T {
        let _scope = Scope::enter(account);
        work()
    }

    /// Returns a future that works for the caller of this account.
    pub fn wrap<F: Future>(self: Arc<Self>, future: F) -> Charged<F> {
        Charged { account: self, future: Box::pin(future) }
    }

    /// Returns `Ok` if the caller may begin work.
    ///
    /// # Errors
    /// The time after which the caller may begin.
    pub fn check(&self) -> Result<(), Duration> {
        self.admit(Instant::now(), 0)
    }

    /// Begins work, whose cost is charged by [`CpuCharge::settle`].
    ///
    /// # Errors
    /// As [`CpuAccount::check`].
    pub fn begin(self: &Arc<Self>) -> Result<CpuCharge, Duration> {
        self.admit(Instant::now(), 1)?;
        Ok(CpuCharge { account: self.clone() })
    }

    /// Counts `begun` pieces of work, unless the account is overdrawn. Returns the time to wait
    /// then.
    fn admit(&self, now: Instant, begun: u32) -> Result<(), Duration> {
        let mut state = self.state.lock();
        if let Some(rate) = self.rate {
            state.fill(rate, now);
            let left = state.expected();
            if left <= 0.0 {
                state.usage.refused += 1;
                let wait = Duration::try_from_secs_f64(-left / rate).unwrap_or(WAIT_MAX);
                return Err(wait.clamp(WAIT_MIN, WAIT_MAX));
            }
        }
        state.in_flight += begun;
        Ok(())
    }

    /// Charges work that is done.
    pub fn charge(&self, used: Duration) {
        let mut state = self.state.lock();
        state.seconds -= used.as_secs_f64();
        state.usage.used += used;
    }

    /// Runs `work`, and charges the processor time of this thread.
    pub fn measure<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = cpu_time();
        let done = work();
        self.charge(cpu_time().saturating_sub(before));
        done
    }

    /// Returns the figures since the account was created.
    pub fn usage(&self) -> CpuAccountUsage {
        self.state.lock().usage
    }

    /// Returns an account of the quota `per_minute` that continues with the figures and the balance
    /// of this one. Work in flight is charged to this account only.
    pub fn with_quota(self: &Arc<Self>, per_minute: Option<f64>) -> Arc<CpuAccount> {
        let rate = per_minute.map(|seconds| seconds / 60.0);
        if rate == self.rate {
            return self.clone();
        }
        let before = *self.state.lock();
        let after = CpuAccount::new(per_minute);
        {
            let mut state = after.state.lock();
            state.usage = before.usage;
            // Without a quota nothing refills an account, so its balance means nothing.
            if self.rate.is_some() {
                state.seconds = state.seconds.min(before.seconds);
                state.filled = before.filled;
                state.cost = before.cost;
            }
        }
        after
    }
}

/// Work that has begun. Dropped without [`CpuCharge::settle`], it costs nothing.
#[derive(Debug)]
pub struct CpuCharge {
    account: Arc<CpuAccount>,
}

impl CpuCharge {
    /// Charges the cost of the work.
    pub fn settle(self, used: Duration) {
        let mut state = self.account.state.lock();
        let used_seconds = used.as_secs_f64();
        state.cost = match state.cost {
            0.0 => used_seconds,
            cost => cost + (used_seconds - cost) * COST_WEIGHT,
        };
        state.seconds -= used_seconds;
        state.usage.used += used;
    }
}

impl Drop for CpuCharge {
    fn drop(&mut self) {
        let mut state = self.account.state.lock();
        state.in_flight = state.in_flight.saturating_sub(1);
    }
}

/// Guard that sets the current account, and restores the previous one on drop.
struct Scope {
    before: Option<Arc<CpuAccount>>,
}

impl Scope {
    fn enter(account: Option<Arc<CpuAccount>>) -> Scope {
        Scope { before: CURRENT.replace(account) }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        CURRENT.set(self.before.take());
    }
}

/// A future that works for the caller of an account.
pub struct Charged<F> {
    account: Arc<CpuAccount>,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for Charged<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let _scope = Scope::enter(Some(self.account.clone()));
        self.future.as_mut().poll(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn begin_at(account: &Arc<CpuAccount>, now: Instant) -> Result<CpuCharge, Duration> {
        account.admit(now, 1)?;
        Ok(CpuCharge { account: account.clone() })
    }

    #[test]
    fn work_is_charged_after_its_end() {
        let account = CpuAccount::new(Some(60.0));
        let now = Instant::now();
        begin_at(&account, now).unwrap().settle(8 * SECOND);
        let wait = begin_at(&account, now).unwrap_err();
        assert!(wait > 2 * SECOND && wait < 4 * SECOND, "{wait:?}");
        assert!(begin_at(&account, now + 4 * SECOND).is_ok());
        assert_eq!(account.usage(), CpuAccountUsage { used: 8 * SECOND, refused: 1 });
    }

    #[test]
    fn work_in_flight_counts_at_the_average_cost() {
        let account = CpuAccount::new(Some(60.0));
        let now = Instant::now();
        begin_at(&account, now).unwrap().settle(SECOND);
        // Four seconds are left, and each work is expected to take one.
        let begun: Vec<_> = (0..4).map(|_| begin_at(&account, now).unwrap()).collect();
        assert!(begin_at(&account, now).is_err());
        drop(begun);
        assert!(begin_at(&account, now).is_ok(), "work that did not run costs nothing");
    }

    #[test]
    fn a_pause_earns_a_bounded_burst() {
        let account = CpuAccount::new(Some(6.0));
        let late = Instant::now() + 1000 * SECOND;
        begin_at(&account, late).unwrap().settle(SECOND / 2);
        assert!(begin_at(&account, late).is_err(), "half a second is the burst");
        assert!(begin_at(&account, late + SECOND / 100).is_ok());
    }

    #[test]
    fn an_account_without_a_quota_counts_only() {
        let account = CpuAccount::new(None);
        account.begin().unwrap().settle(1000 * SECOND);
        account.charge(SECOND);
        assert!(account.check().is_ok());
        assert_eq!(account.usage().used, 1001 * SECOND);
        let limited = account.with_quota(Some(1.0));
        assert_eq!(limited.usage().used, 1001 * SECOND);
        assert!(Arc::ptr_eq(&limited, &limited.with_quota(Some(1.0))));
    }

    #[test]
    fn a_changed_quota_keeps_the_balance() {
        let account = CpuAccount::new(Some(60.0));
        let now = Instant::now();
        begin_at(&account, now).unwrap().settle(15 * SECOND);
        // Ten seconds are missing, which two seconds refill in one.
        let wait = begin_at(&account.with_quota(Some(120.0)), now).unwrap_err();
        assert!(wait > 4 * SECOND && wait <= 5 * SECOND, "{wait:?}");
        let unlimited = account.with_quota(None);
        assert!(begin_at(&unlimited, now).is_ok());
        assert!(begin_at(&unlimited.with_quota(Some(60.0)), now).is_ok(), "no quota, no debt");
    }

    /// A caller that always works uses its quota at any cost of its work.
    #[test]
    fn a_busy_caller_gets_its_quota() {
        let account = CpuAccount::new(Some(12.0));
        let start = Instant::now();
        let mut used = 0.0;
        for step in 0..60_000u64 {
            let now = start + Duration::from_millis(step);
            let cost = Duration::from_millis(step * 7919 % 41);
            if let Ok(charge) = begin_at(&account, now) {
                charge.settle(cost);
                used += cost.as_secs_f64();
            }
        }
        // A minute's quota, the burst, and at most one work more.
        assert!((12.0..13.1).contains(&used), "{used}");
    }

    #[test]
    fn the_current_account_is_that_of_the_scope() {
        let (one, two) = (CpuAccount::new(None), CpuAccount::new(None));
        let same = |account: &Arc<CpuAccount>| {
            CpuAccount::current().is_some_and(|current| Arc::ptr_eq(&current, account))
        };
        CpuAccount::scope(Some(one.clone()), || {
            let mut inner = two.clone().wrap(std::future::poll_fn(|_| Poll::Ready(same(&two))));
            let waker = std::task::Waker::noop();
            let polled = Pin::new(&mut inner).poll(&mut Context::from_waker(waker));
            assert_eq!(polled, Poll::Ready(true));
            assert!(same(&one));
        });
        assert!(CpuAccount::current().is_none());
        one.measure(|| {
            let before = cpu_time();
            while cpu_time() - before < Duration::from_millis(2) {}
        });
        assert!(one.usage().used >= Duration::from_millis(2));
    }
}
