//! Proof that a node knows the cluster's secret, without showing it.
//!
//! Each side sends 32 random bytes; each then sends HMAC-SHA256 of the secret over a label (which side it is) and
//! everything both said, so that a proof fits one connection and one direction. The dialer proves first: a listener gives
//! nothing that a stranger could test guesses against.

use bytes::Bytes;
use hmac::{Hmac, Mac};
use sha2::Sha256;
use warren_proto::peer::{Hello, Nonce};

/// Length of the random part of a challenge.
pub(crate) const NONCE_LEN: usize = 32;

/// Whose proof it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Dialer,
    Listener,
}

fn transcript(secret: &[u8], side: Side, hello: &Hello, nonce: &Nonce) -> Hmac<Sha256> {
    // A key of any length is accepted: `new_from_slice` of HMAC cannot fail.
    let mut mac = match Hmac::<Sha256>::new_from_slice(secret) {
        Ok(mac) => mac,
        Err(_) => Hmac::<Sha256>::new(&Default::default()),
    };
    mac.update(match side {
        Side::Dialer => b"warren peer 1 dialer\0",
        Side::Listener => b"warren peer 1 listen\0",
    });
    let mut field = |bytes: &[u8]| {
        mac.update(&(bytes.len() as u32).to_le_bytes());
        mac.update(bytes);
    };
    field(&hello.nonce);
    field(hello.name.as_bytes());
    field(&hello.protocol.to_le_bytes());
    field(&hello.incarnation.to_le_bytes());
    field(&hello.start.to_le_bytes());
    field(&nonce.nonce);
    field(nonce.name.as_bytes());
    field(&nonce.protocol.to_le_bytes());
    field(&nonce.incarnation.to_le_bytes());
    field(&nonce.start.to_le_bytes());
    mac
}

/// This side's proof.
pub(crate) fn prove(secret: &[u8], side: Side, hello: &Hello, nonce: &Nonce) -> Bytes {
    Bytes::copy_from_slice(&transcript(secret, side, hello, nonce).finalize().into_bytes())
}

/// Whether the other side's proof is right; takes the same time for every wrong one.
pub(crate) fn verify(secret: &[u8], side: Side, hello: &Hello, nonce: &Nonce, proof: &[u8]) -> bool {
    transcript(secret, side, hello, nonce).verify_slice(proof).is_ok()
}

/// Random bytes for a challenge.
pub(crate) fn nonce() -> Result<Bytes, getrandom::Error> {
    let mut bytes = [0; NONCE_LEN];
    getrandom::fill(&mut bytes)?;
    Ok(Bytes::copy_from_slice(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parties() -> (Hello, Nonce) {
        let hello = Hello { nonce: Bytes::from_static(&[1; 32]), name: "a@h".into(), ..Default::default() };
        let answer = Nonce { nonce: Bytes::from_static(&[2; 32]), name: "b@h".into(), ..Default::default() };
        (hello, answer)
    }

    #[test]
    fn a_proof_holds_for_its_secret_side_and_challenge_only() {
        let (hello, answer) = parties();
        let proof = prove(b"secret", Side::Dialer, &hello, &answer);
        assert!(verify(b"secret", Side::Dialer, &hello, &answer, &proof));
        assert!(!verify(b"Secret", Side::Dialer, &hello, &answer, &proof));
        assert!(!verify(b"secret", Side::Listener, &hello, &answer, &proof));
        let other = Nonce { nonce: Bytes::from_static(&[3; 32]), ..answer };
        assert!(!verify(b"secret", Side::Dialer, &hello, &other, &proof));
        assert!(!verify(b"secret", Side::Dialer, &hello, &other, b""));
    }
}
