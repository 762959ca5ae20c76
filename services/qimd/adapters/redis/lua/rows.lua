-- Events are two streams a conversation, entry <conversation_seq>-0 in both: `rows` has what scripts
-- look at and what the event pins (`row`, JSON), `bodies` the encoded event, so that looking through
-- rows never touches a body. Where the fields of a row are, as conversation_commit writes them:
local EVENT_ID, CREATED_AT_MS, IDEMPOTENCY, DIGEST, ROW = 2, 4, 6, 8, 10
-- And of a body:
local BODY_EVENT_ID, ENCODED = 2, 4

-- An entry's conversation_seq, as text.
local function seq_of(entry)
  return string.sub(entry[1], 1, -3)
end
