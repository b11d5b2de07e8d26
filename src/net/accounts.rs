//! Charges clients' own lists to the budget of their networks.

use std::net::IpAddr;
use std::sync::{Arc, Weak};

use super::guard::Guard;
use crate::budget::Kind;
use crate::hub::{Accounts, Hub};
use crate::model::Now;

pub struct Searches {
    guard: Arc<Guard>,
    /// For its clock. Weak, because the hub has these accounts.
    hub: Weak<Hub>,
}

impl Searches {
    pub fn new(guard: Arc<Guard>, hub: &Arc<Hub>) -> Searches {
        Searches { guard, hub: Arc::downgrade(hub) }
    }

    fn now(&self) -> Option<Now> {
        self.hub.upgrade().map(|hub| hub.clock.now())
    }
}

impl Accounts for Searches {
    fn used(&self, ip: IpAddr) -> u64 {
        self.now().map_or(0, |now| self.guard.budgets().share(Kind::Searches, now, ip))
    }

    fn admit(&self, ip: IpAddr) -> Result<(), u64> {
        let admit = |now| self.guard.budgets().admit(Kind::Searches, now, ip).map_err(|over| over.retry_after_s.into());
        self.now().map_or(Ok(()), admit)
    }

    fn charge(&self, ip: IpAddr, us: u64) {
        if let Some(now) = self.now() {
            self.guard.budgets().charge(Kind::Searches, now, ip, us);
        }
    }
}
