//! Methods that only concern the session: answers to deliveries, qos, confirm.select.

use warren_broker::Settlement;
use warren_proto::amqp091::{
    AccessRequestOk, BasicQos, BasicQosOk, BasicRecoverOk, ChannelFlowOk, ConfirmSelectOk, Method, ProtocolError,
    ReplyCode,
};

use super::Channel;

impl Channel {
    /// Handles one of them and says what to answer.
    pub(super) fn basic(&mut self, method: Method) -> Result<Option<Method>, ProtocolError> {
        match method {
            Method::BasicAck(ack) => self.settle(ack.delivery_tag, ack.multiple, Settlement::Ack),
            Method::BasicNack(nack) => {
                let settlement = match nack.requeue {
                    true => Settlement::Requeue { failed: false },
                    false => Settlement::Discard { failed: false },
                };
                self.settle(nack.delivery_tag, nack.multiple, settlement)
            }
            Method::BasicReject(reject) => {
                let settlement = match reject.requeue {
                    true => Settlement::Requeue { failed: true },
                    false => Settlement::Discard { failed: true },
                };
                self.settle(reject.delivery_tag, false, settlement)
            }
            Method::BasicRecover(recover) => {
                self.recover(recover.requeue)?;
                Ok(Some(BasicRecoverOk::default().into()))
            }
            Method::BasicRecoverAsync(recover) => self.recover(recover.requeue).map(|()| None),
            Method::BasicQos(qos) => self.qos(&qos),
            Method::ConfirmSelect(select) => {
                self.session.select_confirms();
                Ok((!select.nowait).then(|| ConfirmSelectOk::default().into()))
            }
            Method::ChannelFlow(flow) if flow.active => Ok(Some(ChannelFlowOk { active: true }.into())),
            Method::ChannelFlow(_) => Err(ProtocolError::new(ReplyCode::NotImplemented, "active=false")),
            Method::AccessRequest(_) => Ok(Some(AccessRequestOk { ticket: 1 }.into())),
            other => {
                debug_assert!(false, "not a method of the session: {other:?}");
                Err(ProtocolError::new(ReplyCode::CommandInvalid, "unexpected method"))
            }
        }
    }

    fn settle(&mut self, tag: u64, multiple: bool, settlement: Settlement) -> Result<Option<Method>, ProtocolError> {
        match self.session.settle(tag, multiple, settlement) {
            Ok(()) => Ok(None),
            Err(unknown) => Err(ProtocolError::new(ReplyCode::PreconditionFailed, unknown.to_string())),
        }
    }

    fn recover(&mut self, requeue: bool) -> Result<(), ProtocolError> {
        if !requeue {
            return Err(ProtocolError::new(ReplyCode::NotImplemented, "requeue=false"));
        }
        self.session.recover();
        Ok(())
    }

    fn qos(&mut self, qos: &BasicQos) -> Result<Option<Method>, ProtocolError> {
        if qos.prefetch_size != 0 {
            let text = format!("prefetch_size!=0 ({})", qos.prefetch_size);
            return Err(ProtocolError::new(ReplyCode::NotImplemented, text));
        }
        // Where a limit for the whole channel is denied, it counts as one for each consumer.
        if !qos.global || !self.session.limit_all(qos.prefetch_count) {
            self.prefetch = qos.prefetch_count;
        }
        Ok(Some(BasicQosOk::default().into()))
    }
}
