//! What game servers post over HTTP: announcements whose rules are as pure as those of datagrams. A rule takes the request and
//! returns an effect.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use super::section::Cookies;
use super::{Heartbeat, Verdict};
use crate::model::{Address, Announce, Now, Server};

/// An HTTP path that game servers post to.
pub struct PostRoute {
    pub path: &'static str,
    /// Upper bound on the body. It must not depend on the settings.
    pub bytes_max: usize,
    pub rule: Arc<dyn PostRule>,
}

pub trait PostRule: Send + Sync {
    fn post(&self, at: &PostContext<'_>, post: &Post<'_>) -> PostEffect;

    /// The answer to a [proven](PostEffect::Proven) announcement, and to every post that is refused because too much is asked
    /// for at once.
    fn decided(&self, verdict: &Verdict) -> PostAnswer;
}

/// A post, with its whole body.
pub struct Post<'a> {
    /// The client, whose address its connection proves.
    pub peer: IpAddr,
    /// The value of a header, if it is there and is text. Names are in lower case.
    pub header: &'a dyn Fn(&'static str) -> Option<&'a str>,
    pub body: &'a [u8],
}

/// What rules for posts can use besides the request.
pub struct PostContext<'a> {
    pub now: Now,
    pub cookies: Cookies,
    /// The listed server at an address.
    pub listed: &'a dyn Fn(Address) -> Option<Arc<Server>>,
    /// The server that is known at an address, also while it is not listed because it does not answer.
    pub known: &'a dyn Fn(Address) -> Option<Arc<Server>>,
    /// Why the last announcement of this address came to nothing, if it did within the last ten minutes.
    pub failure: &'a dyn Fn(Address) -> Option<Failure>,
}

/// The effect of a post.
pub enum PostEffect {
    /// Nothing but this answer.
    Answer(PostAnswer),
    /// A server's announcement is not accepted. Its owner can see why.
    Refused { address: Address, why: String, answer: PostAnswer },
    /// A server announces itself. It is answered at once, asked in the background, and listed when it answers.
    File { heartbeat: Box<Heartbeat>, answer: PostAnswer },
    /// A server has proven its address with this post.
    Proven {
        announce: Box<Announce<'static>>,
        /// Sent as well, if the server accepts the announcement.
        challenge: Option<Challenge>,
    },
    /// A server has to show first that it receives what is sent to it.
    Challenged { challenge: Challenge, answer: PostAnswer },
    /// A server that is listed, and has shown that it is the one, stops.
    Quit { address: Address, answer: PostAnswer },
}

/// What became of an earlier announcement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub kind: FailureKind,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// It is listed nevertheless.
    Warning,
    /// The game did not answer.
    Silent,
    Error,
}

/// A datagram for a game server that has posted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    pub to: Address,
    pub bytes: Box<[u8]>,
}

/// An answer as HTTP sends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostAnswer {
    pub status: u16,
    pub content_type: &'static str,
    pub body: Cow<'static, str>,
    /// When to try again, if it is refused for now.
    pub retry_after_s: Option<u32>,
}

impl PostAnswer {
    pub fn new(status: u16, content_type: &'static str, body: impl Into<Cow<'static, str>>) -> PostAnswer {
        PostAnswer { status, content_type, body: body.into(), retry_after_s: None }
    }
}
