//! The `expiration` property: a decimal number of milliseconds, as text.

/// Ten years, the longest time to live that any server of this family takes.
pub const MAX_EXPIRATION_MS: u64 = 315_360_000_000;

/// An expiration that is not a decimal integer from 0 to [`MAX_EXPIRATION_MS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expiration is not an integer from 0 to {MAX_EXPIRATION_MS}")]
pub struct InvalidExpiration;

/// Reads an expiration: digits only, but for a leading `+`.
pub fn parse_expiration(text: &str) -> Result<u64, InvalidExpiration> {
    // u64's own parser takes exactly that: an optional plus sign and at least one digit.
    let ms: u64 = text.parse().map_err(|_| InvalidExpiration)?;
    if ms > MAX_EXPIRATION_MS { Err(InvalidExpiration) } else { Ok(ms) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_decimal_integers_are_taken() {
        for bad in ["abc", "-1", "10ms", "1.5", "", "+", " 1", "1 ", "315360000001", "99999999999999999999"] {
            assert_eq!(parse_expiration(bad), Err(InvalidExpiration), "{bad:?}");
        }
        for (text, ms) in [("+5", 5), ("0", 0), ("007", 7), ("315360000000", MAX_EXPIRATION_MS)] {
            assert_eq!(parse_expiration(text), Ok(ms));
        }
    }
}
