//! Loopback ports that no other test and no outgoing connection takes while a cluster lives.

use std::net::TcpListener;
use std::process;

/// First port that may be given out, and the first that may not: below the range that the kernel gives to outgoing
/// connections, so that a killed node finds its port free when it starts again.
const RANGE: std::ops::Range<u16> = 12_000..31_000;

/// Ports per claim: one that is held as the claim itself, the others for a cluster's listeners.
const CLAIM: u16 = 16;

/// A block of ports, claimed by listening on its first one for as long as this value lives.
pub struct Claim {
    base: u16,
    _held: TcpListener,
}

impl Claim {
    /// Claims a block in which every port is free now.
    pub fn new() -> Claim {
        let blocks = (RANGE.end - RANGE.start) / CLAIM;
        let start = process::id() as u16 % blocks;
        for step in 0..blocks {
            let base = RANGE.start + (start + step) % blocks * CLAIM;
            let Ok(held) = TcpListener::bind(("127.0.0.1", base)) else {
                continue;
            };
            let free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
            if (base + 1..base + CLAIM).all(free) {
                return Claim { base, _held: held };
            }
        }
        panic!("no {CLAIM} neighbouring ports are free in {RANGE:?}");
    }

    /// The AMQP port of the node with that index.
    pub fn amqp(&self, node: usize) -> u16 {
        self.nth(1 + 2 * node)
    }

    /// The peer port of the node with that index.
    pub fn peer(&self, node: usize) -> u16 {
        self.nth(2 + 2 * node)
    }

    fn nth(&self, offset: usize) -> u16 {
        assert!(offset < usize::from(CLAIM), "a test cluster has at most seven nodes");
        self.base + offset as u16
    }
}

impl Default for Claim {
    fn default() -> Self {
        Claim::new()
    }
}
