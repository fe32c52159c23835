//! Sessions are lost: what they held returns, as failed.

use warren_proto::ids::{NodeId, SessionRef};

use super::Reply;
use super::effects::Effects;
use super::state::Queue;

impl Queue {
    pub(super) fn session_down(&mut self, now_ms: u64, session: SessionRef, fx: &mut Effects) -> Reply {
        for key in self.consumers.of_session(session) {
            self.drop_consumer(now_ms, key, true, fx);
        }
        self.sessions.drop_enqueuer(session, fx);
        Reply::Ok
    }

    pub(super) fn node_down(&mut self, now_ms: u64, node: NodeId, fx: &mut Effects) -> Reply {
        let sessions: Vec<_> = self.sessions.of_node(node).map(|(session, _)| session).collect();
        for session in sessions {
            self.session_down(now_ms, session, fx);
        }
        Reply::Ok
    }
}
