//! The one source of chance: everything that a seed draws comes from here.

/// A small generator (xoshiro256**), seeded through splitmix64.
#[derive(Debug, Clone)]
pub struct Random {
    state: [u64; 4],
}

/// One step of splitmix64: a well-mixed number for each input.
fn splitmix(x: &mut u64) -> u64 {
    *x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *x;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A digest of a few numbers that depends on their order.
pub fn mix(parts: &[u64]) -> u64 {
    let mut h = 0x2545_f491_4f6c_dd1d;
    for part in parts {
        let mut x = h ^ *part;
        h = splitmix(&mut x);
    }
    h
}

/// FNV-1a of some octets.
pub fn digest(octets: &[u8]) -> u64 {
    octets
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, octet| (hash ^ u64::from(*octet)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// A digest of many octets, eight at once.
pub fn digest_many(octets: &[u8]) -> u64 {
    let (words, rest) = octets.as_chunks::<8>();
    let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let hash = words.iter().fold(octets.len() as u64, |hash, word| step(hash, u64::from_le_bytes(*word)));
    mix(&[hash, digest(rest)])
}

impl Random {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Self {
        let mut x = seed;
        Random { state: [splitmix(&mut x), splitmix(&mut x), splitmix(&mut x), splitmix(&mut x)] }
    }

    /// A generator of its own for one part of the run, so that a change in one part moves no other's draws.
    pub fn part(seed: u64, name: &str) -> Self {
        Random::new(mix(&[seed, digest(name.as_bytes())]))
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number below `limit`; 0 where that is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.any() % limit.max(1)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// A number from `low` to `high` of which each order of magnitude is as likely.
    pub fn spread(&mut self, low: u64, high: u64) -> u64 {
        let (low, high) = (low.max(1), high.max(1));
        let doublings = u64::from((high / low).max(1).ilog2());
        let base = low << self.below(doublings + 1);
        self.between(base, (2 * base - 1).min(high))
    }

    /// Whether something of this likelihood, in a thousand, happens.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// An index below `count`.
    pub fn index(&mut self, count: usize) -> usize {
        self.below(count as u64) as usize
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())]
    }

    /// Puts them in any order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.index(i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_sequence_and_parts_differ() {
        let draws = |mut r: Random| (0..8).map(|_| r.any()).collect::<Vec<_>>();
        assert_eq!(draws(Random::new(7)), draws(Random::new(7)));
        assert_ne!(draws(Random::part(7, "disk")), draws(Random::part(7, "network")));
    }

    #[test]
    fn a_digest_depends_on_every_octet() {
        let octets: Vec<u8> = (0..21).collect();
        let changed = (0..21).map(|at| {
            let mut other = octets.clone();
            other[at] ^= 1;
            digest_many(&other)
        });
        assert!(changed.into_iter().all(|other| other != digest_many(&octets)));
        assert_ne!(digest_many(&[]), digest_many(&[0]));
    }

    #[test]
    fn a_spread_stays_in_its_range() {
        let mut r = Random::new(1);
        for _ in 0..1000 {
            assert!((3..=100).contains(&r.spread(3, 100)));
            assert_eq!(r.spread(5, 5), 5);
        }
    }
}
