//! Peer discovery by DNS (spec: operations.md, section 5.3): each address of one host name is a node, whose own name is found by
//! asking for the address's name.
#![allow(unsafe_code, reason = "the standard library looks names up, and has no call for the other way")]

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::net::{IpAddr, SocketAddr};

use super::formation::Peer;

/// Longest host name, and the zero behind it.
const HOST: usize = 1025;

/// The nodes behind a host name, in order of their names. They are called like `own` (`name@host`) before the `@`, and have
/// its kind of host name, short or with dots; their peer port is `port`.
pub async fn discover(hostname: &str, own: &str, port: u16) -> Result<Vec<Peer>, String> {
    let found = tokio::net::lookup_host((hostname, port)).await.map_err(|error| format!("{hostname}: {error}"))?;
    let addresses: Vec<SocketAddr> = found.collect();
    if addresses.is_empty() {
        return Err(format!("{hostname} has no address"));
    }
    let (prefix, host) = own.split_once('@').unwrap_or((own, ""));
    let (prefix, long) = (prefix.to_owned(), host.contains('.'));
    let named = tokio::task::spawn_blocking(move || {
        let mut peers: BTreeMap<String, SocketAddr> = BTreeMap::new();
        for address in addresses {
            match host_of(address.ip()) {
                Ok(host) => drop(peers.entry(node_name(&prefix, &host, long)).or_insert(address)),
                Err(error) => tracing::warn!(%address, error, "an address found by DNS has no name"),
            }
        }
        peers
    });
    let peers = named.await.map_err(|error| error.to_string())?;
    if peers.is_empty() {
        return Err(format!("none of {hostname}'s addresses has a name"));
    }
    Ok(peers.into_iter().map(|(name, address)| Peer { name, address: address.to_string() }).collect())
}

fn node_name(prefix: &str, host: &str, long: bool) -> String {
    let host = host.trim_end_matches('.');
    let host = if long { host } else { host.split('.').next().unwrap_or(host) };
    format!("{prefix}@{host}")
}

/// The name of an address, by the system's resolver. Blocks.
fn host_of(ip: IpAddr) -> Result<String, String> {
    let mut name = [0 as libc::c_char; HOST];
    let status = match ip {
        IpAddr::V4(ip) => {
            let address = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: 0,
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) },
                sin_zero: [0; 8],
            };
            ask(&address, &mut name)
        }
        IpAddr::V6(ip) => {
            let address = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: 0,
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: ip.octets() },
                sin6_scope_id: 0,
            };
            ask(&address, &mut name)
        }
    };
    if status != 0 {
        return Err(format!("the resolver answers with error {status}"));
    }
    // SAFETY: a call that succeeds ends the name with a zero inside the buffer, which outlives the reference.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    name.to_str().map(str::to_owned).map_err(|error| error.to_string())
}

/// `address` is a socket address of the C library, of the family that it says.
fn ask<A>(address: &A, name: &mut [libc::c_char; HOST]) -> libc::c_int {
    // SAFETY: reads `size_of::<A>()` bytes of the address and writes at most `HOST` bytes of the name; both outlive the call.
    unsafe {
        libc::getnameinfo(
            std::ptr::from_ref(address).cast(),
            size_of::<A>() as libc::socklen_t,
            name.as_mut_ptr(),
            HOST as libc::socklen_t,
            std::ptr::null_mut(),
            0,
            libc::NI_NAMEREQD,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_called_like_this_one_at_the_host_that_was_found() {
        assert_eq!(node_name("rabbit", "pod-1.svc.cluster.local.", false), "rabbit@pod-1");
        assert_eq!(node_name("rabbit", "pod-1.svc.cluster.local.", true), "rabbit@pod-1.svc.cluster.local");
        assert_eq!(node_name("w1", "localhost", false), "w1@localhost");
    }

    #[tokio::test]
    async fn this_machine_is_found_by_its_loopback_name() {
        let found = discover("localhost", "w1@localhost", 25672).await.unwrap();
        let loopback = |peer: &Peer| peer.address == "127.0.0.1:25672" || peer.address == "[::1]:25672";
        assert!(found.iter().any(loopback), "{found:?}");
        assert!(found.iter().all(|peer| peer.name.starts_with("w1@")), "{found:?}");
    }

    #[tokio::test]
    async fn a_name_that_is_none_is_an_error_and_not_an_empty_list() {
        let error = discover("no-such-host.invalid", "w1@localhost", 25672).await.unwrap_err();
        assert!(error.contains("no-such-host.invalid"), "{error}");
    }
}
