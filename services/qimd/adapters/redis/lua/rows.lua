-- Events are two streams a conversation, entry <conversation_seq>-0 in both: `rows` has what steps
-- and counts look at, `bodies` the encoded event, so that counting never touches a body.
-- Where the fields of a row are, as conversation_commit writes them:
local KIND, SENDER, CREATED_AT_MS, EVENT_ID, IDEMPOTENCY, DIGEST, PINS = 2, 4, 6, 8, 10, 12, 14
-- And of a body:
local BODY_EVENT_ID, ENCODED = 2, 4

-- An entry's conversation_seq, as text.
local function seq_of(entry)
  return string.sub(entry[1], 1, -3)
end
