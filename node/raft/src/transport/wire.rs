//! The generated gRPC service, and how its messages are encoded.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

#[allow(missing_docs, unused_qualifications, clippy::all, reason = "generated")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/warren.peer.rs"));
}

pub(crate) use generated::{peer_client, peer_server};

/// A stream encodes waiting frames into one buffer until it holds this much, then writes it: one write for many small
/// frames, and no more than a window's fraction buffered for big ones.
const WRITE_BATCH: usize = 256 << 10;
/// Step in which that buffer grows, and what an idle stream holds.
const BUFFER: usize = 16 << 10;

/// Protobuf, with buffers sized for lanes.
pub(crate) struct PeerCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for PeerCodec<T, U> {
    fn default() -> Self {
        PeerCodec(PhantomData)
    }
}

impl<T, U> Codec for PeerCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(BUFFER, WRITE_BATCH))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<T, U>::raw_decoder(BufferSettings::new(BUFFER, WRITE_BATCH))
    }
}
