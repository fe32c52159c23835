//! Telling the service manager how the start and the stop go (systemd's `Type=notify`). Nothing happens without one.

use std::os::unix::net::UnixDatagram;

/// Sends a state such as `READY=1`.
pub fn tell(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = UnixDatagram::unbound().and_then(|socket| send(&socket, path.as_ref(), state)) {
        tracing::warn!(%error, "the service manager could not be notified");
    }
}

fn send(socket: &UnixDatagram, path: &std::path::Path, state: &str) -> std::io::Result<usize> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::SocketAddr;

    // A name that starts with @ is not a file but an abstract one.
    match path.to_str().and_then(|text| text.strip_prefix('@')) {
        Some(name) => socket.send_to_addr(state.as_bytes(), &SocketAddr::from_abstract_name(name)?),
        None => socket.send_to(state.as_bytes(), path),
    }
}
