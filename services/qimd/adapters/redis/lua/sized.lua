-- A list of texts as one: each with its length (u32 big-endian) before it, as core.ids.sized gives
-- it. A reply of one string costs its reader a slice an element; one of many, a parser's turn each.
local function add_sized(list, text)
  list[#list + 1] = struct.pack('>I4', #text)
  list[#list + 1] = text
end
