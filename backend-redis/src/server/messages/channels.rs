//! [`ChannelMap`]: the channels that have listeners.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError, Weak},
};

use lockcore::{FencingToken, backend::Wakeup};
use redis::{PushInfo, Value};
use tokio::sync::watch;

use crate::server::CommandConnection;

/// The channels that have listeners, as the listeners and the task share them.
#[derive(Debug, Default)]
pub(super) struct ChannelMap {
    /// Critical sections are short and do not await, so this is not tokio's mutex.
    channels: Mutex<Channels>,
}

#[derive(Debug, Default)]
pub(super) struct Channels(HashMap<String, ChannelListeners>);

/// Which messages of a channel a listener is woken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audience {
    /// Everybody hears every message.
    Everybody,
    /// Those who wait in the queue of a fair lock do not hear of the release of a fair hold, which
    /// wakes the first in the queue on a channel of its own.
    Queued,
}

/// The message about the end of a fair hold, on the channel of the lock: see `release_fair.lua`.
/// Redisson reads the same number as in the message about any other release.
const FAIR_RELEASE: &[u8] = b"00";

#[derive(Debug)]
struct ChannelListeners {
    count: usize,
    /// Wakes those who hear everything.
    wake: watch::Sender<ChannelState>,
    /// Wakes those who wait in a queue, once there was one.
    wake_queued: Option<watch::Sender<ChannelState>>,
}

impl ChannelListeners {
    fn new() -> Self {
        Self { count: 0, wake: new_sender(), wake_queued: None }
    }

    fn wake(&self, audience: Audience) -> Option<&watch::Sender<ChannelState>> {
        match audience {
            Audience::Everybody => Some(&self.wake),
            Audience::Queued => self.wake_queued.as_ref(),
        }
    }

    fn all(&self) -> impl Iterator<Item = &watch::Sender<ChannelState>> {
        [Audience::Everybody, Audience::Queued].into_iter().filter_map(|who| self.wake(who))
    }
}

fn new_sender() -> watch::Sender<ChannelState> {
    watch::Sender::new(ChannelState { is_allowed: true, granted: None })
}

/// The state of a channel that its listeners are woken for.
#[derive(Debug)]
pub(super) struct ChannelState {
    /// `false` while the server refuses the channel.
    pub(super) is_allowed: bool,
    /// The grant in the last message, if there was one.
    granted: Option<HeardGrant>,
}

/// A grant that came in a message.
#[derive(Debug)]
struct HeardGrant {
    token: FencingToken,
    request: u64,
    /// The connection for commands when it came. If that was given up since, the server may have
    /// been succeeded by one that knows nothing of the grant.
    partner: Weak<CommandConnection>,
}

impl ChannelState {
    /// The meaning of the last message.
    pub(super) fn wakeup(&self) -> Wakeup {
        let is_current = |granted: &&HeardGrant| {
            granted.partner.upgrade().is_some_and(|partner| partner.is_usable())
        };
        match self.granted.as_ref().filter(is_current) {
            Some(&HeardGrant { token, request, .. }) => Wakeup::Granted { token, request },
            None => Wakeup::Changed,
        }
    }
}

/// Decodes the message that grants a fair lock: see `grant_directly.lua`. Any other message only
/// says that there may be news.
fn granted(message: Option<&Value>) -> Option<(FencingToken, u64)> {
    let Some(Value::BulkString(message)) = message else { return None };
    let (token, request) = std::str::from_utf8(message).ok()?.split_once(':')?;
    let token: u64 = token.parse().ok()?;
    Some((FencingToken::from(token), request.parse().ok()?))
}

impl ChannelMap {
    pub(super) fn lock(&self) -> MutexGuard<'_, Channels> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the listeners of the channel of a message. Unless it grants a lock, it proves nothing,
    /// and is only a reason to try again.
    pub(super) fn on_message(&self, push: &PushInfo, partner: &Weak<CommandConnection>) {
        if let Some(Value::BulkString(channel)) = push.data.first()
            && let Ok(channel) = std::str::from_utf8(channel)
            && let Some(listeners) = self.lock().0.get(channel)
        {
            let message = push.data.get(1);
            let granted = granted(message);
            let is_for_all =
                !matches!(message, Some(Value::BulkString(message)) if message == FAIR_RELEASE);
            let queued = listeners.wake_queued.as_ref().filter(|_| is_for_all);
            for wake in std::iter::once(&listeners.wake).chain(queued) {
                let granted = granted.map(|(token, request)| HeardGrant {
                    token,
                    request,
                    partner: partner.clone(),
                });
                wake.send_modify(|state| state.granted = granted);
            }
        }
    }

    /// Wakes the listeners of all channels, which may have missed a message.
    pub(super) fn wake_all(&self) {
        for wake in self.lock().0.values().flat_map(ChannelListeners::all) {
            wake.send_modify(|state| state.granted = None);
        }
    }

    /// Notes whether the server allows a channel, and wakes its listeners if that has changed.
    pub(super) fn set_allowed(&self, channel: &str, is_allowed: bool) {
        for wake in self.lock().0.get(channel).into_iter().flat_map(ChannelListeners::all) {
            wake.send_if_modified(|state| {
                std::mem::replace(&mut state.is_allowed, is_allowed) != is_allowed
            });
        }
    }
}

impl Channels {
    /// Counts a listener, and returns its receiver.
    pub(super) fn add_listener(
        &mut self,
        channel: &str,
        audience: Audience,
    ) -> watch::Receiver<ChannelState> {
        let listeners = self.0.entry(channel.to_owned()).or_insert_with(ChannelListeners::new);
        listeners.count += 1;
        match audience {
            Audience::Everybody => listeners.wake.subscribe(),
            Audience::Queued => listeners.wake_queued.get_or_insert_with(new_sender).subscribe(),
        }
    }

    /// Counts a listener that is gone. Returns `true` if it was the last one of its channel.
    pub(super) fn remove_listener(&mut self, channel: &str) -> bool {
        let Some(listeners) = self.0.get_mut(channel) else { return false };
        listeners.count -= 1;
        let was_last = listeners.count == 0;
        if was_last {
            self.0.remove(channel);
        }
        was_last
    }
}

#[cfg(test)]
mod fuzz {
    use arbtest::arbtest;
    use redis::PushKind;

    use super::*;
    use crate::fuzz::value;

    #[test]
    fn a_message_wakes_the_listeners_of_its_channel_whatever_its_content() {
        let (channels, names) = (ChannelMap::default(), ["owner:1", "permits"]);
        let audiences = [Audience::Everybody, Audience::Queued];
        let mut receivers = names.map(|name| {
            audiences.map(|audience| (audience, channels.lock().add_listener(name, audience)))
        });
        arbtest(|u| {
            let mut data =
                (0..u.int_in_range(0..=3)?).map(|_| value(u, 2)).collect::<Result<Vec<_>, _>>()?;
            if u.ratio(1, 4)? {
                let message = *u.choose(&["0", "00", "000", "1", "7:8"])?;
                let parts = [names[u.choose_index(2)?], message];
                data = parts.map(|part| Value::BulkString(part.into())).to_vec();
            }
            let push = PushInfo { kind: PushKind::Message, data: data.clone() };
            channels.on_message(&push, &Weak::new());
            for (name, receivers) in names.into_iter().zip(&mut receivers) {
                let is_for_channel = data.first() == Some(&Value::BulkString(name.into()));
                let is_of_fair_hold = data.get(1) == Some(&Value::BulkString("00".into()));
                for (audience, receiver) in receivers {
                    let hears = *audience == Audience::Everybody || !is_of_fair_hold;
                    let is_woken = receiver.has_changed().unwrap();
                    assert_eq!(is_woken, is_for_channel && hears, "{audience:?}: {data:?}");
                    receiver.mark_unchanged();
                }
            }
            assert_eq!(channels.lock().0.len(), 2, "a message adds no channel");
            Ok(())
        });
    }
}
