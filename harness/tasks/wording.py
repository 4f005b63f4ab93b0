"""How answers to multiple-choice questions are worded: the phrases that choose, deny or join options.

Patterns named for what stands before a letter end in ``$``; the others are matched at the character behind it.
"""

from __future__ import annotations

import re

_OPEN = r"[\s:=>\"'<\[({}.,\\-]*$"  # between a phrase and its letter
_BE = (
    r"(?:is|are|was|be|being|remains|becomes|would be|will be|should be|must be|has to be|could be|seems to be|equals)"
)
_THING = r"(?:answer|choice|option|response|solution|selection|pick|decision|conclusion|verdict|guess|letter)"
_NAME = r"(?:option|choice|letter|answer|alternative)"
_FILLER = (
    r"(?:[\s,:]*\b(?:either|both|therefore|thus|hence|so|clearly|definitely|certainly|most|likely|probably|actually|indeed|"
    r"simply|then|still|now|in fact|of course|just|really|surely|obviously|again|the|an|correct|right|best|final|only|"
    r"first|second|third|fourth|last|"
    r"answer is|statement|number|it's|it is|not \(?[A-J]\)?,? (?:but|it's|it is)|" + _NAME + r"))*"
)
_CHOOSE = (
    r"(?:choose|chose|pick|picked|select|selected|go with|going with|went with|vote for|decide on|"
    r"decide for|settle on|settled on|"
    r"opt for|answer|say|prefer|guess|think|believe|go for|stick with|stay with|stand by|sticking with|staying with|"
    r"choosing|picking|selecting)"
)
_STRONG = (
    rf"\b{_THING}(?:,?\s+[\w'()-]+){{0,8}}?,?\s+{_BE}\b",
    rf"\b{_THING}(?:\s+(?:to|for|of)(?:\s+\w+){{1,6}})?['\"]?\s*(?:[:=>]|-+(?=[ >])|\s>)",
    rf"\b(?:correct|right|best|true|final|selected|chosen|proper|appropriate|accurate|likely)\s+(?:\w+\s+){{0,3}}?{_BE}\b",
    r"\b(?:correct|final|selected|chosen|ans|result)\.?\s*[:=]",
    r"\boutput is\b",
    rf"\b(?:i|we|me|i'd|i'll|i'm|we'll|let's|would|will|to|and|so|then|must|should)\s+(?:\w+\s+)?{_CHOOSE}\b"
    r"(?: that| it's| it is)?",
    r"(?:^|[.\n:]\s*)(?:choose|pick|select|mark|take|go with|choosing|picking|selecting)\b",
    r"\b(?:chang|correct|revis|switch|updat|amend)\w*\s+(?:(?:my|the|it|this|that)(?:\s+\w+){0,2}?\s+)?to\b",
    r"(?:答案|选择|選擇|选项|選項|选|選|正解|答え|정답|답)\s*(?:是|为|為|は|은)?",
    r"(?:الإجابة|الجواب|उत्तर)(?:\s+(?:الصحيحة|الصحيح|है))?\s*(?:هي|هو|:)?",
    r"\b(?:respuesta|réponse|reponse|antwort|risposta|resposta|ответ|odpowiedź|cevap|antwoord|svaret|svar|đáp án|"
    r"jawaban|jawabannya|відповідь)(?:\s+\w+){0,3}?\s*"
    r"(?::|\b(?:est|ist|es|is|är|er|to|là|adalah|è|é)\b|-)",
    r"\\f?boxed",
    r"#{2,}",
    r"<(?:answer|final|final_answer|choice|result)>",
    r"\bvote (?:is for|goes to|goes for)\b",
)
_WEAK = (
    r"\b(?:therefore|thus|hence|so|accordingly|consequently|finally|in conclusion|it's|it is|it must be|that's|that is|"
    r"this is|it should be|has to be|we get|gives|corresponds to|matches|points to|leads to|which is|make that|"
    r"scratch that|on (?:reflection|second thoughts?)|"
    r"clearly|certainly|probably|i mean|i meant|or rather|rather|instead|actually|correction|wait|sorry|no|hmm|"
    r"definitely|leaves|leaving|must be|should be|only)\b"
)
_AFTER = (
    r"because|since|as|for|which|that|is|was|based|given|due|although|though|while|whereas|if|when|where|and|but|not|from|"
    r"in|with|by|rather|instead|will|would|seems|looks|here|therefore|so|or|according|per|only|again|has|over|above|then"
)
_COPULA = r"(?:is|are|was|would be|seems|looks|must be|should be|can be|appears|remains|has been)"
_JOIN = r"\s*(?:,\s*(?:and|or)?|/|&|\+|\band\b|\bor\b)\s*"

STRONG = re.compile("(?:" + "|".join(_STRONG) + ")" + _FILLER + _OPEN, re.IGNORECASE)
WEAK = re.compile(_WEAK + _FILLER + _OPEN, re.IGNORECASE)
NAMED = re.compile(rf"(?:\b(?:{_NAME}|ans)(?:\s+|(?=[(\[]))|选项\s*|選項\s*)[\"'(\[{{]*$", re.IGNORECASE)
NOT_MEANT = re.compile(  # a letter after it is somebody's name, or a choice that was not made
    r"\b(?:vitamin|hepatitis|type|grade|plan|group|appendix|figure|point|vector|matrix|set|country|company|person|firm|"
    r"party|state|event|variable|species|protein|factor|section|class|part|team|city|player|school|influenza)\s+$"
    r"|\b(?:going to|tempted to|inclined to|about to|at first|initially|originally|used to|would have|might have)"
    rf"\s+(?:\w+\s+)?(?:{_CHOOSE}|said|thought)\s+(?:{_NAME}\s+)?[\"'(\[{{]*$",
    re.IGNORECASE,
)
DENIED_BEFORE = re.compile(
    r"(?:\bnot|n't|\bnever|\bneither|\bnor|\bexcept|\bthan|\binstead of|\beliminat\w+|\brul\w+ out|\breject\w*|"
    rf"\bexclud\w+|\bdiscard\w*|\bwithout)\s+(?:be\s+)?(?:the\s+)?(?:{_NAME}\s+)?"
    rf"(?:[\"'(\[{{]*[A-J][)\]]?\s*(?:,|\bor\b|\band\b|\bnor\b)\s*(?:{_NAME}\s+)?)*[\"'(\[{{]*$"
    r"|(?:n't|\bnot|\bnever)\s+(?:think|believe|say|choose|pick|select|agree|likely)\b[^.,;\n]*$"
    r"|\bunlikely\b[^.,;\n]*$",
    re.IGNORECASE,
)
DENIED_AFTER = re.compile(
    rf"[)\]}}\"'.:]*\s*(?:{_COPULA}\s+)?(?:clearly\s+|also\s+|definitely\s+)?(?:not\b(?!\s+\(?[A-J]\b)|n't|never\b|incorrect|"
    r"wrong\b|false\b|untrue|eliminated|excluded|ruled out|implausible|unlikely|impossible|irrelevant|inaccurate|isn't|"
    r"wasn't|doesn't|cannot|can't|fails\b|contradicts)",
    re.IGNORECASE,
)
PRAISE = re.compile(
    rf"(?:[)\]}}\"'.:]+(?:(?:(?!(?-i:[\s(][A-J][)\].:,\s]))[^.;\n]){{0,80}}?))?\s+{_COPULA}\s+(?:to be\s+)?"
    r"(?:(?:clearly|indeed|therefore|definitely|still|thus)\s+)?(?:the\s+|my\s+)?(?:only\s+|most\s+|more\s+|single\s+|best\s+)?(?:correct|right|true|best|better|answer|accurate|likely|appropriate|"
    r"choice|final|what i (?:choose|pick|would))\b|\s+it is\s*[.!]?\s*$",
    re.IGNORECASE,
)
END = re.compile(
    rf"\s*$|\s*\n|\s*[.,;:!?)\]}}\"'>|/&=<\\]|\s+-|\s+\(|\s+(?:{_AFTER})\b|\s*[\u0370-\u1fff\u3040-\uffff]",
    re.IGNORECASE,
)
TEXT_END = re.compile(rf"\s*$|\s*\n|\s*[.,;:!?)\]}}\"'](?!\w)|\s+\(|\s+(?:{_AFTER})\b", re.IGNORECASE)
JOINED = re.compile(
    rf"[)\]}}\"']*{_JOIN}(?:the\s+)?(?:{_NAME}\s+)?[(\[]?(?:(?P<letter>[A-J](?![\w'-]|\s+(?:is|was|would|has|seems|cannot|can)\b)|(?<=[(\[])[a-j](?=[)\]])|[a-j](?=[)\]]?\s*[.!?]?\s*$)))",
)
TEXT_JOIN = re.compile(rf"{_JOIN}(?:(?:the|an?)\s+)?", re.IGNORECASE)
JOINED_BEFORE = re.compile(rf"(?<![\w'])([A-J])[)\]]?\s*(?:/|&|\+|\band\b|\bor\b)\s*(?:{_NAME}\s+)?[(\[]?$")
RETRACT = re.compile(
    r"\b(?:wait|actually|correction|corrected|sorry|mistake\w*|wrong|instead|rather|change\w*|revis\w+|hmm|oops|scratch|"
    r"on reflection|on second thoughts?|no(?=[,.;:!]))\b",
    re.IGNORECASE,
)
ARTICLE = re.compile(r"\b(?:the|an?)\s+$", re.IGNORECASE)
ARTICLE_FIRST = re.compile(r"^\s*(?:the|an?)\s+", re.IGNORECASE)
SPELLINGS = str.maketrans(
    dict.fromkeys("“”„«»‘’‹›", "'")
    | dict.fromkeys("–−", "-")
    | dict.fromkeys("—―", " - ")
    | dict.fromkeys("→⇒⟶➡", ">")
    | {"∴": " so ", "。": ".", "、": ","}
)
