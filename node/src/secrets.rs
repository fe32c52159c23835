//! Values of configuration files, encrypted with a passphrase as RabbitMQ's tools do it (spec: operations.md, section 2.4):
//! `base64(salt[16] ++ iv[16] ++ AES-CBC(payload))`, the key from the passphrase and the salt by PBKDF2; the payload is an Erlang
//! term, of which values are binaries, strings or atoms.

use aes::cipher::block_padding::Pkcs7;
use aes::cipher::{BlockDecryptMut, BlockEncryptMut, KeyIvInit};
use aes::{Aes128, Aes192, Aes256};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cbc::{Decryptor, Encryptor};
use pbkdf2::pbkdf2_hmac;
use sha2::{Sha224, Sha256, Sha384, Sha512};

/// Octets of the salt and of the initialisation vector.
const SALT: usize = 16;
/// Rounds of the key derivation, at most: more would only make whoever waits give up.
const MAX_ITERATIONS: u32 = 10_000_000;

/// What a value is encrypted with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cipher {
    Aes128,
    Aes192,
    Aes256,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hash {
    Sha224,
    Sha256,
    Sha384,
    Sha512,
}

/// How values are encrypted: cipher, hash and rounds of the key derivation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheme {
    cipher: Cipher,
    hash: Hash,
    iterations: u32,
}

impl Default for Scheme {
    fn default() -> Self {
        Scheme { cipher: Cipher::Aes128, hash: Hash::Sha256, iterations: 1 }
    }
}

impl Scheme {
    /// A scheme of names and a number; what is empty is that of RabbitMQ.
    pub fn new(cipher: &str, hash: &str, iterations: &str) -> Result<Self, String> {
        let default = Scheme::default();
        Ok(Scheme {
            cipher: match cipher {
                "" => default.cipher,
                "aes_128_cbc" | "aes_cbc128" => Cipher::Aes128,
                "aes_192_cbc" => Cipher::Aes192,
                "aes_256_cbc" | "aes_cbc256" => Cipher::Aes256,
                other => {
                    return Err(format!(
                        "the cipher {other} is not available: there are aes_128_cbc, aes_192_cbc, aes_256_cbc"
                    ));
                }
            },
            hash: match hash {
                "" => default.hash,
                "sha224" => Hash::Sha224,
                "sha256" => Hash::Sha256,
                "sha384" => Hash::Sha384,
                "sha512" => Hash::Sha512,
                other => {
                    return Err(format!("the hash {other} is not available: there are sha224, sha256, sha384, sha512"));
                }
            },
            iterations: match iterations {
                "" => default.iterations,
                number => match number.parse() {
                    Ok(iterations @ 1..=MAX_ITERATIONS) => iterations,
                    _ => return Err(format!("`{number}` iterations: not a number from 1 to {MAX_ITERATIONS}")),
                },
            },
        })
    }

    fn key(&self, passphrase: &str, salt: &[u8]) -> Vec<u8> {
        let mut key = vec![
            0;
            match self.cipher {
                Cipher::Aes128 => 16,
                Cipher::Aes192 => 24,
                Cipher::Aes256 => 32,
            }
        ];
        let (passphrase, rounds) = (passphrase.as_bytes(), self.iterations);
        match self.hash {
            Hash::Sha224 => pbkdf2_hmac::<Sha224>(passphrase, salt, rounds, &mut key),
            Hash::Sha256 => pbkdf2_hmac::<Sha256>(passphrase, salt, rounds, &mut key),
            Hash::Sha384 => pbkdf2_hmac::<Sha384>(passphrase, salt, rounds, &mut key),
            Hash::Sha512 => pbkdf2_hmac::<Sha512>(passphrase, salt, rounds, &mut key),
        }
        key
    }

    /// The encrypted form of a value. `random` gives the salt and the initialisation vector, and must be fresh.
    pub fn encrypt(&self, value: &Term, passphrase: &str, random: [u8; 2 * SALT]) -> String {
        let (salt, iv) = random.split_at(SALT);
        let (key, payload) = (self.key(passphrase, salt), value.encode());
        fn run<C: KeyIvInit + BlockEncryptMut>(key: &[u8], iv: &[u8], payload: &[u8]) -> Vec<u8> {
            // Key and vector have the cipher's lengths.
            C::new_from_slices(key, iv)
                .map(|cipher| cipher.encrypt_padded_vec_mut::<Pkcs7>(payload))
                .unwrap_or_default()
        }
        let encrypted = match self.cipher {
            Cipher::Aes128 => run::<Encryptor<Aes128>>(&key, iv, &payload),
            Cipher::Aes192 => run::<Encryptor<Aes192>>(&key, iv, &payload),
            Cipher::Aes256 => run::<Encryptor<Aes256>>(&key, iv, &payload),
        };
        STANDARD.encode([&random[..], &encrypted].concat())
    }

    /// The value of an encrypted form.
    pub fn decrypt(&self, encrypted: &str, passphrase: &str) -> Result<Term, String> {
        let bytes = STANDARD.decode(encrypted.trim()).map_err(|error| format!("it is not base64: {error}"))?;
        let (salt, rest) = bytes.split_at_checked(SALT).ok_or("it is too short")?;
        let (iv, payload) = rest.split_at_checked(SALT).ok_or("it is too short")?;
        let key = self.key(passphrase, salt);
        fn run<C: KeyIvInit + BlockDecryptMut>(key: &[u8], iv: &[u8], payload: &[u8]) -> Option<Vec<u8>> {
            C::new_from_slices(key, iv).ok()?.decrypt_padded_vec_mut::<Pkcs7>(payload).ok()
        }
        let decrypted = match self.cipher {
            Cipher::Aes128 => run::<Decryptor<Aes128>>(&key, iv, payload),
            Cipher::Aes192 => run::<Decryptor<Aes192>>(&key, iv, payload),
            Cipher::Aes256 => run::<Decryptor<Aes256>>(&key, iv, payload),
        };
        let decrypted = decrypted.and_then(|payload| Term::decode(&payload));
        decrypted.ok_or_else(|| {
            "the passphrase, cipher, hash or number of iterations is not the one it was encrypted with".to_owned()
        })
    }
}

/// A value as Erlang has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Term {
    /// `<<"text">>`
    Binary(Vec<u8>),
    /// `"text"`
    String(Vec<u8>),
    /// `text`
    Atom(String),
}

impl Term {
    /// A term as it is typed: `<<"text">>`, `"text"`, or an atom.
    pub fn parse(text: &str) -> Self {
        let inner = |before: &str, after: &str| text.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
        match (inner("<<\"", "\">>"), inner("\"", "\"")) {
            (Some(binary), _) => Term::Binary(binary.as_bytes().to_vec()),
            (None, Some(string)) => Term::String(string.as_bytes().to_vec()),
            (None, None) => Term::Atom(text.to_owned()),
        }
    }

    /// What it says, whatever it is.
    pub fn text(&self) -> String {
        match self {
            Term::Binary(bytes) | Term::String(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Term::Atom(name) => name.clone(),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let long = |tag: u8, bytes: &[u8]| {
            let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            [&[131, tag][..], &len.to_be_bytes(), bytes].concat()
        };
        let short = |tag: u8, bytes: &[u8]| match u16::try_from(bytes.len()) {
            Ok(len) => [&[131, tag][..], &len.to_be_bytes(), bytes].concat(),
            // Longer ones have no form of their own.
            Err(_) => long(BINARY, bytes),
        };
        match self {
            Term::Binary(bytes) => long(BINARY, bytes),
            Term::String(bytes) => short(STRING, bytes),
            Term::Atom(name) => short(ATOM, name.as_bytes()),
        }
    }

    fn decode(payload: &[u8]) -> Option<Self> {
        let (131, rest) = payload.split_first().map(|(version, rest)| (*version, rest))? else { return None };
        let (tag, rest) = rest.split_first()?;
        let of = |len: usize, bytes: &[u8]| (bytes.len() == len).then(|| bytes.to_vec());
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).ok();
        match *tag {
            BINARY => {
                let (len, bytes) = rest.split_first_chunk::<4>()?;
                of(u32::from_be_bytes(*len) as usize, bytes).map(Term::Binary)
            }
            STRING => {
                let (len, bytes) = rest.split_first_chunk::<2>()?;
                of(usize::from(u16::from_be_bytes(*len)), bytes).map(Term::String)
            }
            ATOM | ATOM_UTF8 => {
                let (len, bytes) = rest.split_first_chunk::<2>()?;
                of(usize::from(u16::from_be_bytes(*len)), bytes).and_then(text).map(Term::Atom)
            }
            SMALL_ATOM_UTF8 => {
                let (len, bytes) = rest.split_first()?;
                of(usize::from(*len), bytes).and_then(text).map(Term::Atom)
            }
            _ => None,
        }
    }
}

const BINARY: u8 = 109;
const STRING: u8 = 107;
const ATOM: u8 = 100;
const ATOM_UTF8: u8 = 118;
const SMALL_ATOM_UTF8: u8 = 119;

impl std::fmt::Display for Term {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Term::Binary(_) => write!(f, "<<\"{}\">>", self.text()),
            Term::String(_) => write!(f, "\"{}\"", self.text()),
            Term::Atom(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_comes_back_with_the_same_passphrase_and_scheme_only() {
        for (cipher, hash, iterations) in
            [("", "", ""), ("aes_192_cbc", "sha384", "3"), ("aes_256_cbc", "sha512", "1000")]
        {
            let scheme = Scheme::new(cipher, hash, iterations).unwrap();
            for term in [Term::parse("<<\"guest\">>"), Term::parse("\"päss\""), Term::parse("atom")] {
                let encrypted = scheme.encrypt(&term, "pass", [7; 32]);
                assert_eq!(scheme.decrypt(&encrypted, "pass").unwrap(), term);
                assert!(scheme.decrypt(&encrypted, "other").is_err());
            }
        }
        let encrypted = Scheme::default().encrypt(&Term::parse("<<\"x\">>"), "p", [1; 32]);
        assert!(Scheme::new("aes_256_cbc", "", "").unwrap().decrypt(&encrypted, "p").is_err());
        for damaged in ["", "!", "AAAA", &encrypted[..encrypted.len() - 4]] {
            assert!(Scheme::default().decrypt(damaged, "p").is_err(), "{damaged}");
        }
    }

    #[test]
    fn what_openssl_encrypted_in_this_scheme_is_read() {
        for (encrypted, text) in [
            ("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh/SCiFjbJ3HsO0drqTwMvBl", "\"guest\""),
            ("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8S6fwLoCZ7/8v8O6VPtjTr", "guest"),
            ("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh/Vg1TPn6T11BV/5esbzwZO", "<<\"guest\">>"),
        ] {
            assert_eq!(Scheme::default().decrypt(encrypted, "mypassphrase").unwrap().to_string(), text);
        }
    }

    #[test]
    fn terms_are_written_as_they_are_typed() {
        for text in ["<<\"guest\">>", "\"guest\"", "guest"] {
            assert_eq!(Term::parse(text).to_string(), text);
            assert_eq!(Term::parse(text).text(), "guest");
        }
    }

    #[test]
    fn what_is_not_available_is_named() {
        assert!(Scheme::new("des3_cbc", "", "").unwrap_err().contains("des3_cbc"));
        assert!(Scheme::new("", "md5", "").is_err());
        assert!(Scheme::new("", "", "0").is_err());
    }
}
