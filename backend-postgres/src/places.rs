//! [`Places`]: which address of which host is tried first.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// An address to connect to: a host of the URL, by its number, and one of the addresses of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) host: usize,
    /// `None` if the host has no name to look up.
    pub(crate) address: Option<IpAddr>,
}

/// Where an attempt to connect begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// With this host.
    Host(usize),
    /// With the place that was of use last.
    At(Place),
    /// With the one after a place that was of no use, which comes last.
    After(Place),
}

/// What the connections to the same servers have learned about them.
#[derive(Clone, Debug)]
pub(crate) struct Places(Arc<Mutex<Begin>>);

impl Places {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Begin::Host(0))))
    }

    pub(crate) fn begin(&self) -> Begin {
        *self.lock()
    }

    /// Begins here from now on: the server has been of use.
    pub(crate) fn prefer(&self, place: Place) {
        *self.lock() = Begin::At(place);
    }

    /// Begins with the next place from now on: this one, which an attempt from `begun` has led to,
    /// was of no use.
    pub(crate) fn leave(&self, place: Place, begun: Begin) {
        let mut begin = self.lock();
        // Unless another connection has led elsewhere meanwhile.
        if *begin == begun || *begin == Begin::At(place) {
            *begin = Begin::After(place);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Begin> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Begin {
    /// The number of the first host.
    pub(crate) fn host(self) -> usize {
        match self {
            Self::Host(host) => host,
            Self::At(place) | Self::After(place) => place.host,
        }
    }

    /// Divides the addresses of the first host into those to try before the other hosts and those
    /// to try after them.
    pub(crate) fn divide(self, mut addresses: Vec<Place>) -> (Vec<Place>, Vec<Place>) {
        let at = |sought| addresses.iter().position(|place| *place == sought);
        let early = match self {
            Self::Host(_) => 0,
            Self::At(place) => at(place).unwrap_or(0),
            Self::After(place) => at(place).map_or(0, |at| at + 1),
        };
        let early = addresses.split_off(early);
        (early, addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(host: usize, last: u8) -> Place {
        Place { host, address: Some([10, 0, 0, last].into()) }
    }

    #[test]
    fn the_place_of_use_comes_first_and_the_one_of_no_use_last() {
        let [a, b, c] = [1, 2, 3].map(|last| place(0, last));
        let all = vec![a, b, c];
        assert_eq!(Begin::Host(0).divide(all.clone()), (vec![a, b, c], vec![]));
        assert_eq!(Begin::At(b).divide(all.clone()), (vec![b, c], vec![a]));
        assert_eq!(Begin::After(b).divide(all.clone()), (vec![c], vec![a, b]));
        assert_eq!(Begin::After(c).divide(all.clone()), (vec![], vec![a, b, c]));
        let gone = place(0, 9);
        assert_eq!(Begin::At(gone).divide(all.clone()), (vec![a, b, c], vec![]));
        assert_eq!(Begin::After(gone).divide(all), (vec![a, b, c], vec![]));
    }

    #[test]
    fn a_place_is_left_unless_another_connection_has_led_elsewhere() {
        let [a, b, c] = [0, 1, 2].map(|host| place(host, 1));
        let places = Places::new();
        places.leave(a, Begin::Host(0));
        assert_eq!(places.begin(), Begin::After(a));
        places.prefer(b);
        // Two connections that had been opened to the same server.
        places.leave(b, Begin::After(a));
        places.leave(b, Begin::At(b));
        assert_eq!(places.begin(), Begin::After(b));
        // The preferred place refused the connection, and the next one was of no use either.
        places.prefer(a);
        places.leave(b, Begin::At(a));
        assert_eq!(places.begin(), Begin::After(b));
        // A late one.
        places.prefer(c);
        places.leave(a, Begin::Host(0));
        assert_eq!(places.begin(), Begin::At(c));
    }
}
